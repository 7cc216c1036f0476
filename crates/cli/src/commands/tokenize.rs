//! `larql tokenize`: the ids of a text.

use larql_db::Rows;
use larql_db::token::lone_token;
use larql_models::tokenizer::{Bos, EncodeSpecial};
use serde::Serialize;

use crate::Outcome;
use crate::args::TokenizeArgs;
use crate::context::{Context, text_or_stdin};
use crate::error::CliError;

#[derive(Debug, Serialize)]
struct Wire {
    ids: Vec<u32>,
    tokens: Vec<String>,
}

/// Prints the ids of a text and the piece of text that each stands for.
///
/// # Errors
/// If the model has no tokenizer, or it cannot represent the text.
pub(crate) fn tokenize(context: &Context, args: &TokenizeArgs) -> Result<Outcome, CliError> {
    let db = context.open(&args.model)?;
    let tokenizer = context.tokenizer(&db)?;
    let text = text_or_stdin(&args.text)?;
    let special = if args.special {
        EncodeSpecial::Markers
    } else {
        EncodeSpecial::Plain
    };
    let bos = if args.no_bos { Bos::Never } else { Bos::Model };
    let ids = tokenizer.encode(&text, special, bos)?;
    let tokens: Vec<String> = ids
        .iter()
        .map(|id| lone_token(tokenizer, *id).unwrap_or_default())
        .collect();
    if context.printer.is_table() {
        let mut rows = Rows::new(&["id", "token"]);
        for (id, token) in ids.iter().zip(tokens) {
            rows.push(vec![(*id).into(), token.into()]);
        }
        context.printer.table(&rows)?;
    } else {
        context.printer.json(&Wire { ids, tokens })?;
    }
    Ok(Outcome::Done)
}
