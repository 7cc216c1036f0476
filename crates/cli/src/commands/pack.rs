//! `larql pack`: the weights of a vindex as they are computed with, kept beside them.

use std::io;
use std::path::Path;
use std::time::Instant;

use larql_db::pack::{Found, PackReport, pack as pack_vindex};
use larql_db::{DbError, Rows};
use larql_engine::TilePlace;
use larql_vindex::{Vindex, VindexError};
use serde::Serialize;

use crate::Outcome;
use crate::args::PackArgs;
use crate::context::Context;
use crate::error::CliError;
use crate::printer::flow;
use crate::table::size;

#[derive(Debug, Serialize)]
struct Wire {
    path: String,
    /// Whether the file was made now.
    written: bool,
    matrices: usize,
    bytes: u64,
    seconds: f64,
    /// What was wrong with the file that was replaced.
    replaced: Option<String>,
}

/// Makes the pack of a vindex, unless it has a sound one.
///
/// # Errors
/// If there is no vindex, it cannot be run, or the file cannot be written; nothing is left behind then.
pub(crate) fn pack(context: &Context, args: &PackArgs) -> Result<Outcome, CliError> {
    let vindex = &args.vindex;
    if !vindex.exists() {
        let path = vindex.clone();
        return Err(CliError::from(DbError::NotFound { path }).with_hint(Some(
            "VINDEX is a folder that `larql extract` made".to_owned(),
        )));
    }
    if !Vindex::is_vindex(vindex) {
        let path = vindex.clone();
        let error = CliError::from(VindexError::NotAVindex { path });
        return Err(error.with_hint(Some(extract_first(vindex))));
    }
    let work = context.interrupts.work();
    let flag = context.interrupts.flag();
    let bar = context.printer.bar();
    let start = Instant::now();
    let report = pack_vindex(vindex, context.n_threads(), &mut |progress| {
        bar.show(progress.stage, progress.done, progress.total);
        flow(flag.is_raised())
    });
    let report = report.map_err(|error| {
        let hint = unwritable(&error);
        CliError::from(error).with_hint(hint)
    })?;
    drop(work);
    bar.clear();
    let wire = wire(report, start.elapsed().as_secs_f64());
    if context.printer.is_table() {
        context.printer.table(&rows(&wire))?;
    } else {
        context.printer.json(&wire)?;
    }
    Ok(Outcome::Done)
}

/// What to do about a folder that takes no file, if that is what is wrong.
fn unwritable(error: &DbError) -> Option<String> {
    let DbError::Container(larql_formats::Error::Io { source, .. }) = error else {
        return None;
    };
    let is_refused = matches!(
        source.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    );
    is_refused.then(|| {
        "a pack lies in the folder of its vindex: make that writable, or pack a copy of the vindex"
            .to_owned()
    })
}

/// What makes a vindex of another model.
fn extract_first(model: &Path) -> String {
    let model = model.display();
    format!(
        "only a vindex has room for a pack: `larql extract {model} -o OUT`, then `larql pack OUT`"
    )
}

/// What a result that depends on the speed of memory says of the place of the weights; nothing of the usual one.
pub(crate) fn tiles_note(place: TilePlace) -> &'static str {
    match place {
        TilePlace::Memory => "",
        TilePlace::Pack => ", weights mapped from tiles.pack",
    }
}

fn wire(report: PackReport, seconds: f64) -> Wire {
    let PackReport {
        path,
        n_matrices,
        n_bytes,
        found,
    } = report;
    let (written, replaced) = match found {
        Found::Nothing => (true, None),
        Found::SamePack => (false, None),
        Found::Unusable(problem) => (true, Some(problem)),
    };
    Wire {
        path: path.display().to_string(),
        written,
        matrices: n_matrices,
        bytes: n_bytes,
        seconds,
        replaced,
    }
}

fn rows(wire: &Wire) -> Rows {
    let Wire {
        path,
        written,
        matrices,
        bytes,
        seconds,
        replaced,
    } = wire;
    let mut rows = Rows::new(&["what", "value"]);
    let mut row = |what: &str, value: String| rows.push(vec![what.into(), value.into()]);
    row("pack", path.clone());
    row("matrices", matrices.to_string());
    row("size", size(*bytes));
    row("time", format!("{seconds:.2} s"));
    if let Some(problem) = replaced {
        rows.note(format!("the file that was there is replaced: {problem}"));
    }
    rows.note(if *written {
        "a cache: it can be deleted at any time"
    } else {
        "was there already, with the bytes of the weights; nothing was written"
    });
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_written_has_a_hint_and_a_full_disk_has_none() {
        let hint = |kind| {
            let error = larql_formats::Error::Io {
                path: "v/tiles.pack".into(),
                action: "create",
                source: io::Error::from(kind),
            };
            unwritable(&error.into())
        };
        for kind in [
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::ReadOnlyFilesystem,
        ] {
            assert!(hint(kind).is_some_and(|hint| hint.contains("pack a copy")));
        }
        assert_eq!(hint(io::ErrorKind::StorageFull), None);
    }
}
