//! Every family's exported GGUF, run by llama.cpp and by us, against the reference's logits.
//!
//! The reference is the golden file of each parity fixture. Where the export itself says that llama.cpp reads the model
//! otherwise, its answer is shown and not judged, and the same model with the fact that llama.cpp has built in stands in
//! for it: `tools/golden/make_golden.py --peers` makes it anew.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use larql_db::parity::Golden;
use larql_engine::{
    Interrupt, Model, Profile, Runtime, SequenceInput, SequenceState, WantedLogits, argmax, forward,
};
use larql_models::Checkpoint;
use serde_json::Value;

use super::python::{Python, Rows};
use super::roundtrip;
use crate::process;

/// Largest `max |ours - reference| / max |reference|` of our logits from the exported file.
const OURS_REL_MAX: f64 = 1e-4;

/// The same of llama.cpp's: it takes GELU from a table of 16-bit floats.
const PEER_REL_MAX: f64 = 5e-3;

/// How an export's sentences about llama.cpp begin, and how one about a file that it refuses ends.
const PEER_NOTE: &str = "llama.cpp ";
const REFUSED_NOTE: &str = "does not load this file";

/// What an export says where our own reader needs more than the file.
const ALONE_NOTE: &str = "the weights file alone";

/// The programs that take part.
pub(crate) struct Peers {
    python: Python,
    larql: PathBuf,
}

impl Peers {
    /// Fails if Python lacks a package or our program is not built.
    pub(crate) fn find(python: &Path, larql: Option<PathBuf>) -> Result<Self> {
        let larql = larql.unwrap_or_else(|| process::root().join("target/release/larql"));
        ensure!(
            larql.is_file(),
            "{} does not exist; run `cargo build --release` first",
            larql.display()
        );
        Ok(Self {
            python: Python::find(python)?,
            larql,
        })
    }

    /// Runs `larql` with these arguments.
    pub(super) fn larql(&self, arguments: &[&Path]) -> Result<()> {
        process::stdout(Command::new(&self.larql).arg("--quiet").args(arguments)).map(drop)
    }

    /// Exports a model as a GGUF file; what the export says about it.
    fn export_gguf(&self, model: &Path, out: &Path) -> Result<Vec<String>> {
        let mut command = Command::new(&self.larql);
        command
            .args(["--quiet", "--format", "json", "export"])
            .arg(model);
        let printed = process::stdout(command.args(["--to", "gguf", "-o"]).arg(out))?;
        let report: Value = serde_json::from_str(&printed).context("the export printed no JSON")?;
        let notes = report["notes"]
            .as_array()
            .context("an export without notes")?;
        Ok(notes
            .iter()
            .filter_map(|note| note.as_str().map(str::to_owned))
            .collect())
    }

    pub(super) fn python(&self) -> &Python {
        &self.python
    }
}

/// What llama.cpp makes of an exported model.
#[derive(Debug, Clone, PartialEq)]
enum Verdict {
    /// The same as the reference.
    Equal,
    /// Something else, as the export says in these sentences.
    NotExpressible(Vec<String>),
    /// What should not be.
    Failed(Vec<String>),
}

/// One model's outcome.
struct Row {
    verdict: Verdict,
    agreement: String,
    peer_rel: Option<f64>,
    ours_rel: Option<f64>,
}

impl Row {
    fn failed(what: &anyhow::Error) -> Self {
        Self {
            verdict: Verdict::Failed(vec![format!("{what:#}")]),
            agreement: "-".to_owned(),
            peer_rel: None,
            ours_rel: None,
        }
    }

    fn print(&self, name: &str) {
        let show =
            |rel: Option<f64>| rel.map_or_else(|| "-".to_owned(), |rel| format!("{rel:.1e}"));
        let verdict = match &self.verdict {
            Verdict::Equal => "equal".to_owned(),
            Verdict::NotExpressible(notes) => format!("not expressible: {}", notes.join("; ")),
            Verdict::Failed(failures) => format!("FAILED: {}", failures.join("; ")),
        };
        println!(
            "{name:<22} {:>7} {:>10} {:>10}  {verdict}",
            self.agreement,
            show(self.peer_rel),
            show(self.ours_rel),
        );
    }
}

/// Checks the families named, or all, then Atlas through every format.
pub(crate) fn run(peers: &Peers, families: &[String]) -> Result<()> {
    let root = process::root().join("crates/testkit/data/parity");
    let known = folders(&root)?;
    if let Some(unknown) = families.iter().find(|name| !known.contains(name)) {
        bail!("no fixture `{unknown}`; known: {}", known.join(", "));
    }
    println!(
        "{:<22} {:>7} {:>10} {:>10}  verdict",
        "model", "top-1", "llama.cpp", "ours"
    );
    let mut failed = Vec::new();
    for name in known
        .iter()
        .filter(|name| families.is_empty() || families.contains(name))
    {
        if !is_met(peers, name, &root.join(name)) {
            failed.push(name.as_str());
        }
    }
    if families.is_empty()
        && let Err(error) = roundtrip::atlas(peers)
    {
        println!("atlas: {error:#}");
        failed.push("atlas");
    }
    ensure!(failed.is_empty(), "not met: {}", failed.join(", "));
    Ok(())
}

/// Whether llama.cpp computes the fixture as it should, or the model that stands in for it.
fn is_met(peers: &Peers, name: &str, fixture: &Path) -> bool {
    // A failure of any step is the row's verdict, so that one fixture does not hide the others.
    let row = compare(peers, fixture).unwrap_or_else(|error| Row::failed(&error));
    row.print(name);
    match row.verdict {
        Verdict::Equal => true,
        Verdict::Failed(_) => false,
        Verdict::NotExpressible(_) => {
            let row = stand_in(peers, name).unwrap_or_else(|error| Row::failed(&error));
            row.print(&format!("{name} (peer)"));
            row.verdict == Verdict::Equal
        }
    }
}

/// Makes the model that llama.cpp can express, and compares it.
fn stand_in(peers: &Peers, name: &str) -> Result<Row> {
    let dir = tempfile::tempdir()?;
    peers.python.make_peer(dir.path(), name)?;
    compare(peers, &dir.path().join(name))
}

fn folders(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root).with_context(|| format!("{} cannot be read", root.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn compare(peers: &Peers, fixture: &Path) -> Result<Row> {
    let golden = Golden::open(&fixture.join("golden.safetensors"))?;
    let n = golden.input_ids.len();
    let d_vocab = golden.logits.len() / n;
    let reference: Vec<&[f32]> = golden.logits.chunks_exact(d_vocab).collect();
    let dir = tempfile::tempdir()?;
    let exported = dir.path().join("exported.gguf");
    let notes = peers.export_gguf(fixture, &exported)?;
    let is_whole = !notes.iter().any(|note| note.starts_with(ALONE_NOTE));
    let ours = logits(
        if is_whole { &exported } else { fixture },
        &golden.input_ids,
    )?;
    let ours_rel = distance(&ours, &reference)?;
    let theirs = peers.python().llama_cpp(&exported, &golden.input_ids);
    let theirs =
        theirs.and_then(|rows| Ok((agreeing(&rows, &reference), distance(&rows, &reference)?)));
    let mut verdict = judge(&notes, &theirs, n);
    let mut failures = Vec::new();
    if agreeing(&ours, &reference) < n {
        failures.push("our best tokens differ".to_owned());
    }
    if ours_rel > OURS_REL_MAX {
        failures.push(format!("our logits differ by {ours_rel:.1e}"));
    }
    if !failures.is_empty() {
        verdict = Verdict::Failed(failures);
    }
    Ok(Row {
        verdict,
        agreement: theirs
            .as_ref()
            .map_or_else(|_| "-".to_owned(), |(equal, _)| format!("{equal}/{n}")),
        peer_rel: theirs.ok().map(|(_, rel)| rel),
        ours_rel: Some(ours_rel),
    })
}

/// Judges llama.cpp's agreement on `n` positions and its distance by what the export says of it.
fn judge(notes: &[String], theirs: &Result<(usize, f64)>, n: usize) -> Verdict {
    let said: Vec<String> = notes
        .iter()
        .filter(|note| note.starts_with(PEER_NOTE))
        .cloned()
        .collect();
    let is_refused = said.iter().any(|note| note.ends_with(REFUSED_NOTE));
    let failed = |what: String| Verdict::Failed(vec![what]);
    match theirs {
        Err(_) if is_refused => Verdict::NotExpressible(said),
        Err(error) => failed(format!("{error:#}")),
        Ok(_) if is_refused => failed(format!(
            "llama.cpp loads it; the export says: {}",
            said.join("; ")
        )),
        Ok(_) if !said.is_empty() => Verdict::NotExpressible(said),
        Ok((equal, _)) if *equal < n => {
            failed(format!("llama.cpp agrees on {equal} of {n} positions"))
        }
        Ok((_, rel)) if *rel > PEER_REL_MAX => {
            failed(format!("llama.cpp's logits differ by {rel:.1e}"))
        }
        Ok(_) => Verdict::Equal,
    }
}

/// Our logits of every position.
pub(super) fn logits(model: &Path, ids: &[u32]) -> Result<Rows> {
    let checkpoint = Checkpoint::open(model)?;
    let model = Model::load(&checkpoint)?;
    let n_threads = NonZeroUsize::new(2).context("two is not zero")?;
    let mut runtime = Runtime::new(n_threads, Profile::Exact, Interrupt::default());
    let mut states = [SequenceState::new(model.spec())];
    let input = [SequenceInput {
        tokens: ids,
        logits: WantedLogits::All,
    }];
    let logits = forward(&model, &mut runtime, &input, &mut states, None)?;
    Ok(logits.rows().map(|(_, row)| row.to_vec()).collect())
}

/// Positions whose largest logit is the same token's.
pub(super) fn agreeing<R: AsRef<[f32]>>(rows: &[R], reference: &[&[f32]]) -> usize {
    rows.iter()
        .zip(reference)
        .filter(|(row, reference)| argmax(row.as_ref()) == argmax(reference))
        .count()
}

/// `max |rows - reference| / max |reference|` over all positions.
pub(super) fn distance<R: AsRef<[f32]>>(rows: &[R], reference: &[&[f32]]) -> Result<f64> {
    ensure!(
        rows.len() == reference.len(),
        "{} positions for {}",
        rows.len(),
        reference.len()
    );
    let (mut difference, mut largest) = (0.0_f64, 0.0_f64);
    for (row, reference) in rows.iter().zip(reference) {
        let row = row.as_ref();
        ensure!(
            row.len() == reference.len(),
            "{} logits for {}",
            row.len(),
            reference.len()
        );
        for (a, b) in row.iter().zip(*reference) {
            ensure!(a.is_finite(), "a logit is not finite");
            difference = difference.max((f64::from(*a) - f64::from(*b)).abs());
            largest = largest.max(f64::from(*b).abs());
        }
    }
    ensure!(largest > 0.0, "the reference is zero everywhere");
    Ok(difference / largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFERENCE: [&[f32]; 3] = [&[1.0, -4.0, 0.5], &[0.0, 2.0, 1.0], &[3.0, 0.0, -1.0]];

    fn rows(third: [f32; 3]) -> Rows {
        vec![vec![1.0, -4.0, 0.5], vec![0.0, 2.0, 1.5], third.to_vec()]
    }

    #[test]
    fn a_distance_is_relative_to_the_largest_reference_of_all_positions() {
        assert_eq!(
            distance(&rows([3.0, 0.0, -1.0]), &REFERENCE).unwrap(),
            0.125
        );
        assert!(distance(&rows([3.0, f32::NAN, -1.0]), &REFERENCE).is_err());
        assert!(distance(&rows([3.0, 0.0, -1.0])[..2], &REFERENCE).is_err());
    }

    #[test]
    fn llama_cpp_is_judged_by_what_the_export_says_of_it() {
        let verdict = |note: &str, theirs| {
            let notes: Vec<String> = Some(note.to_owned())
                .filter(|note| !note.is_empty())
                .into_iter()
                .collect();
            judge(&notes, &theirs, 27)
        };
        let ignores = "llama.cpp ignores the window";
        let refuses = "llama.cpp expects a router, so it does not load this file";
        let beside = "output.weight repeats the embedding";
        assert_eq!(verdict("", Ok((27, 1e-6))), Verdict::Equal);
        assert_eq!(verdict(beside, Ok((27, 1e-6))), Verdict::Equal);
        for (note, theirs) in [
            (ignores, Ok((14, 0.5))),
            (ignores, Ok((27, 0.5))),
            (refuses, Err(anyhow::anyhow!("no"))),
        ] {
            assert_eq!(
                verdict(note, theirs),
                Verdict::NotExpressible(vec![note.to_owned()])
            );
        }
        for (note, theirs) in [
            ("", Ok((26, 1e-6))),
            ("", Ok((27, 6e-3))),
            (beside, Ok((26, 1e-6))),
            ("", Err(anyhow::anyhow!("no"))),
            (ignores, Err(anyhow::anyhow!("no"))),
            (refuses, Ok((27, 1e-6))),
        ] {
            assert!(
                matches!(verdict(note, theirs), Verdict::Failed(_)),
                "{note}"
            );
        }
    }
}
