//! Every family's exported GGUF, run by llama.cpp and by us, against the reference's logits.
//!
//! The reference is the golden file of each parity fixture. What llama.cpp cannot express of a fixture is listed here
//! with the reason; such a row is shown, and fails only for the positions that llama.cpp does get right.

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

use super::python::{Python, Rows};
use super::roundtrip;
use crate::process;

/// Largest `max |ours - reference| / max |reference|` of our logits from the exported file.
const OURS_REL_MAX: f64 = 1e-4;

/// What llama.cpp can do with a fixture.
#[derive(Clone, Copy)]
enum Reach {
    /// Everything: every position's best token must be the reference's.
    Whole,
    /// Positions from the count on need something it lacks.
    First(usize, &'static str),
    /// It computes something slightly else everywhere; shown, not judged.
    Other(&'static str),
    /// It does not load the file.
    Nothing(&'static str),
}

/// Fixtures that llama.cpp cannot run in full.
const LIMITS: &[(&str, Reach)] = &[
    (
        "gemma2",
        Reach::Other("takes the attention scale from the head width only"),
    ),
    (
        "gemma3",
        Reach::Other("takes the attention scale from the head width only"),
    ),
    (
        "gemma3n",
        Reach::Nothing("has the sizes of the two published models built in"),
    ),
    ("gpt-oss", Reach::Other("rounds the bounds of YaRN's ramp")),
    (
        "gpt-oss-mxfp4",
        Reach::Other("rounds the bounds of YaRN's ramp"),
    ),
    (
        "kimi-linear",
        Reach::Nothing("has as many linear heads as attention heads"),
    ),
    (
        "mistral-sliding",
        Reach::First(9, "has no window in this family"),
    ),
    (
        "olmoe",
        Reach::Nothing("expects as many K/V heads as heads"),
    ),
    (
        "qwen3-moe",
        Reach::Nothing("expects experts in every layer"),
    ),
    (
        "qwen3-next",
        Reach::Nothing("expects key and value heads of one width"),
    ),
    (
        "starcoder2",
        Reach::First(9, "has no window in this family"),
    ),
];

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

    pub(super) fn python(&self) -> &Python {
        &self.python
    }
}

/// One fixture's outcome.
struct Row {
    verdict: String,
    failed: bool,
    agreement: String,
    peer_rel: Option<f64>,
    ours_rel: Option<f64>,
}

/// Checks the families named, or all, then Atlas through every format.
pub(crate) fn run(peers: &Peers, families: &[String]) -> Result<()> {
    let root = process::root().join("crates/testkit/data/parity");
    let known = folders(&root)?;
    if let Some(unknown) = families.iter().find(|name| !known.contains(name)) {
        bail!("no fixture `{unknown}`; known: {}", known.join(", "));
    }
    let chosen: Vec<&String> = known
        .iter()
        .filter(|name| families.is_empty() || families.contains(name))
        .collect();
    println!(
        "{:<16} {:>9} {:>10} {:>10}  verdict",
        "family", "top-1", "llama.cpp", "ours"
    );
    let mut failed = Vec::new();
    for name in chosen {
        let row = check(peers, name, &root.join(name));
        let show =
            |rel: Option<f64>| rel.map_or_else(|| "-".to_owned(), |rel| format!("{rel:.1e}"));
        println!(
            "{name:<16} {:>9} {:>10} {:>10}  {}",
            row.agreement,
            show(row.peer_rel),
            show(row.ours_rel),
            row.verdict
        );
        if row.failed {
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

/// A failure of any step is the row's verdict, so that one fixture does not hide the others.
fn check(peers: &Peers, name: &str, fixture: &Path) -> Row {
    let reach = LIMITS
        .iter()
        .find(|(limited, _)| *limited == name)
        .map_or(Reach::Whole, |(_, reach)| *reach);
    compare(peers, fixture, reach).unwrap_or_else(|error| Row {
        verdict: format!("FAILED: {error:#}"),
        failed: true,
        agreement: "-".to_owned(),
        peer_rel: None,
        ours_rel: None,
    })
}

fn compare(peers: &Peers, fixture: &Path, reach: Reach) -> Result<Row> {
    let golden = Golden::open(&fixture.join("golden.safetensors"))?;
    let n = golden.input_ids.len();
    let d_vocab = golden.logits.len() / n;
    let reference: Vec<&[f32]> = golden.logits.chunks_exact(d_vocab).collect();
    let dir = tempfile::tempdir()?;
    let exported = dir.path().join("exported.gguf");
    let [export, to, gguf, out] = ["export", "--to", "gguf", "-o"].map(Path::new);
    peers.larql(&[export, fixture, to, gguf, out, &exported])?;
    let ours = logits(&exported, &golden.input_ids)?;
    let ours_rel = distance(&ours, &reference)?;
    let mut failures = Vec::new();
    if agreeing(&ours, &reference) < n {
        failures.push("our best tokens differ".to_owned());
    }
    if ours_rel > OURS_REL_MAX {
        failures.push(format!("our logits differ by {ours_rel:.1e}"));
    }
    let theirs = peers.python().llama_cpp(&exported, &golden.input_ids);
    let (agreement, peer_rel) = match &theirs {
        Ok(rows) => (
            format!("{}/{n}", agreeing(rows, &reference)),
            Some(distance(rows, &reference)?),
        ),
        Err(_) => ("-".to_owned(), None),
    };
    let note = judge(reach, &theirs, &reference, &mut failures);
    let failed = !failures.is_empty();
    let verdict = if failed {
        format!("FAILED: {}", failures.join("; "))
    } else {
        note
    };
    Ok(Row {
        verdict,
        failed,
        agreement,
        peer_rel,
        ours_rel: Some(ours_rel),
    })
}

/// What to say of llama.cpp's answer; what it should have got right and did not goes to `failures`.
fn judge(
    reach: Reach,
    theirs: &Result<Rows>,
    reference: &[&[f32]],
    failures: &mut Vec<String>,
) -> String {
    let rows = match (theirs, reach) {
        (Ok(rows), _) => rows,
        (Err(_), Reach::Nothing(why)) => return format!("not in llama.cpp, which {why}"),
        (Err(error), Reach::Whole | Reach::First(..) | Reach::Other(_)) => {
            failures.push(format!("{error:#}"));
            return String::new();
        }
    };
    let (judged, note) = match reach {
        Reach::Whole => (reference.len(), "agrees".to_owned()),
        Reach::First(n, why) => (n, format!("agrees on {n} positions; llama.cpp {why}")),
        Reach::Other(why) => (0, format!("shown only; llama.cpp {why}")),
        Reach::Nothing(why) => {
            failures.push(format!(
                "llama.cpp runs this now; it was listed because it {why}"
            ));
            return String::new();
        }
    };
    let equal = agreeing(&rows[..judged.min(rows.len())], &reference[..judged]);
    if equal < judged {
        failures.push(format!("llama.cpp agrees on {equal} of {judged} positions"));
    }
    note
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
    fn only_the_positions_within_reach_are_judged() {
        let theirs = Ok(rows([0.0, 3.0, -1.0]));
        let failures = |reach| {
            let mut failures = Vec::new();
            judge(reach, &theirs, &REFERENCE, &mut failures);
            failures
        };
        assert_eq!(
            failures(Reach::Whole),
            ["llama.cpp agrees on 2 of 3 positions"]
        );
        assert!(failures(Reach::First(2, "why")).is_empty());
        assert!(failures(Reach::Other("why")).is_empty());
        assert_eq!(failures(Reach::Nothing("why")).len(), 1);
    }

    #[test]
    fn a_file_that_llama_cpp_refuses_fails_unless_that_is_listed() {
        let theirs = Err(anyhow::anyhow!("cannot load"));
        let mut failures = Vec::new();
        let note = judge(
            Reach::Nothing("lacks it"),
            &theirs,
            &REFERENCE,
            &mut failures,
        );
        assert_eq!(note, "not in llama.cpp, which lacks it");
        assert!(failures.is_empty());
        judge(Reach::First(2, "why"), &theirs, &REFERENCE, &mut failures);
        assert_eq!(failures, ["cannot load"]);
    }

    #[test]
    fn every_limit_is_a_fixtures() {
        let known = folders(&process::root().join("crates/testkit/data/parity")).unwrap();
        for (name, _) in LIMITS {
            assert!(known.iter().any(|fixture| fixture == name), "{name}");
        }
    }
}
