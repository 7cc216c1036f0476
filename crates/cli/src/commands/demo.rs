//! `larql demo`: a tour on the model that comes with the program, every number computed on the spot.

use larql_db::{Rows, Session};
use larql_models::Checkpoint;
use larql_vindex::{ExtractOptions, Level};
use serde::Serialize;

use crate::args::DemoArgs;
use crate::commands::{extract, show, verify};
use crate::context::Context;
use crate::error::CliError;
use crate::{Outcome, atlas, query};

/// Name of the checkpoint's folder and of the vindex.
const NAME: &str = "atlas";

/// One stop of the tour.
#[derive(Debug, Serialize)]
struct Step {
    step: usize,
    title: &'static str,
    explanation: &'static str,
    command: String,
    #[serde(flatten)]
    rows: Rows,
}

/// A question of the tour.
struct Question {
    title: &'static str,
    explanation: &'static str,
    statement: &'static str,
}

const QUESTIONS: &[Question] = &[
    Question {
        title: "Statistics",
        explanation: "A vindex is queried in LQL. STATS says what the model in use consists of.",
        statement: "STATS",
    },
    Question {
        title: "Describe an entity",
        explanation: "DESCRIBE asks the model about an entity in several phrasings per relation and reads its answers.",
        statement: "DESCRIBE \"France\" RELATIONS (capital, continent, currency, demonym, language) TOP 1 BRIEF",
    },
    Question {
        title: "Infer",
        explanation: "INFER runs the model: the most likely next tokens of a prompt.",
        statement: "INFER \"The capital of France is\" TOP 5",
    },
    Question {
        title: "Walk",
        explanation: "WALK shows which FFN features fired on that prompt, as they were executed, and what each writes.",
        statement: "WALK \"The capital of France is\" TOP 5",
    },
    Question {
        title: "Features near a word",
        explanation: "The gate matrix is an index: these gates match the embedding of a word best. A match is not yet a meaning.",
        statement: "SELECT layer, feature, token, cosine FROM FEATURES NEAREST TO \"Paris\" ORDER BY cosine DESC LIMIT 5",
    },
    Question {
        title: "Edges",
        explanation: "Answers are rows of a table, to be filtered and ordered.",
        statement: "SELECT entity, target, prob FROM EDGES WHERE entity IN (\"France\", \"Japan\", \"Kenya\") AND relation = \"capital\" AND rank = 1 ORDER BY prob DESC",
    },
    Question {
        title: "Behind an answer",
        explanation: "VERBOSE lists each phrasing and the features and heads that speak for the answer.",
        statement: "DESCRIBE \"France\" RELATION capital TOP 1 VERBOSE",
    },
];

/// What to do with a model of one's own.
const NEXT: [&str; 4] = [
    "larql extract MODEL -o mine.vindex       MODEL is a .gguf file or a Hugging Face folder",
    "larql repl mine.vindex                   type statements; \\help lists them",
    "larql run MODEL \"Once upon a time\"       continue a text",
    "larql bench MODEL                        how fast this machine runs it",
];

/// Runs the tour.
///
/// # Errors
/// If the temporary folder cannot be written, the folder to keep exists, or somebody interrupts.
pub(crate) fn demo(context: &Context, args: &DemoArgs) -> Result<Outcome, CliError> {
    let profile = args.arithmetic.profile(context)?;
    let temporary = tempfile::Builder::new()
        .prefix("larql-demo-")
        .tempdir()
        .map_err(|source| CliError::failure("output", format!("no temporary folder: {source}")))?;
    let folder = temporary.path().join(NAME);
    let vindex = args
        .keep
        .clone()
        .unwrap_or_else(|| temporary.path().join(format!("{NAME}.vindex")));
    // The commands that are shown work where the vindex stays.
    let shown = match &args.keep {
        Some(folder) => folder.display().to_string(),
        None => format!("{NAME}.vindex"),
    };
    let mut tour = Tour {
        context,
        steps: Vec::new(),
    };
    let work = context.interrupts.work();
    atlas::unpack(&folder)?;
    let accounting = extract::make(
        context,
        &Checkpoint::open(&folder)?,
        &vindex,
        &ExtractOptions::at(Level::All),
    )?;
    tour.step(
        "Extract",
        "A checkpoint becomes a vindex: standard weights, a manifest with digests, and an account of every tensor.",
        format!("larql extract {NAME} -o {shown}"),
        extract::rows(&accounting),
    )?;
    let mut session = query::session(context, profile);
    query::open(context, &mut session, &vindex)?;
    let db = session.database().expect("it was opened just now");
    tour.step(
        "Show",
        "What is inside, read from headers alone.",
        format!("larql show {shown}"),
        show::summary(db)?,
    )?;
    drop(work);
    for question in QUESTIONS {
        tour.ask(&mut session, question)?;
    }
    let work = context.interrupts.work();
    let report = verify::check(context, &vindex)?;
    let mut checks = verify::rows(&report);
    checks.note(verify::verdict(&report));
    tour.step(
        "Verify",
        "Every byte against the manifest.",
        format!("larql verify {shown}"),
        checks,
    )?;
    drop(work);
    tour.finish(args)
}

/// The stops so far.
struct Tour<'a> {
    context: &'a Context,
    steps: Vec<Step>,
}

impl Tour<'_> {
    fn ask(&mut self, session: &mut Session, question: &Question) -> Result<(), CliError> {
        let Question {
            title,
            explanation,
            statement,
        } = *question;
        let parsed =
            larql_lql::parse(statement).map_err(|error| CliError::parse(&error, statement))?;
        let statements = parsed.iter();
        for one in statements {
            let (rows, _) = query::execute(self.context, session, one, statement)?;
            self.step(title, explanation, format!("{statement};"), rows)?;
        }
        Ok(())
    }

    fn step(
        &mut self,
        title: &'static str,
        explanation: &'static str,
        command: String,
        rows: Rows,
    ) -> Result<(), CliError> {
        let step = self.steps.len() + 1;
        let printer = &self.context.printer;
        if printer.is_table() {
            printer.line(&format!("{step}. {title}\n{explanation}\n\n> {command}\n"))?;
            printer.table(&rows)?;
            printer.line("")?;
        }
        self.steps.push(Step {
            step,
            title,
            explanation,
            command,
            rows,
        });
        Ok(())
    }

    fn finish(self, args: &DemoArgs) -> Result<Outcome, CliError> {
        let printer = &self.context.printer;
        if printer.is_table() {
            let mut text = String::from("With a model of your own:\n");
            for line in NEXT {
                text.push_str(&format!("  {line}\n"));
            }
            match &args.keep {
                Some(folder) => {
                    text.push_str(&format!("The vindex of this tour is {}", folder.display()))
                }
                None => {
                    text.push_str("larql demo --keep atlas.vindex keeps the vindex of this tour")
                }
            }
            printer.status(&text)?;
        } else {
            printer.json(&self.steps)?;
        }
        Ok(Outcome::Done)
    }
}
