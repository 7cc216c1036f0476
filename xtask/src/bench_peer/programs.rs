//! The two programs: how they are run once, and what is read of their reports.
//!
//! Reports are read leniently: a field that is needed must be there, fields that are not known are none of our business.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::process;

/// Module name and the name under which `pip install` knows it.
const PACKAGES: &[(&str, &str)] = &[("llama_cpp", "llama-cpp-python"), ("numpy", "numpy")];

/// Lines of a failed program's log that go into the message.
const LOG_LINES: usize = 3;

/// A text of seventeen tokens in the vocabulary of `cargo xtask bench-models`. Of each of those models the most likely next
/// token leads by 0.28 or more, three times what the logits of the two programs differ by.
pub(super) const TEXT: &str = "an hour more of tea and we can be on our way";

/// llama.cpp in a Python, and ours.
pub(crate) struct Programs {
    python: PathBuf,
    larql: PathBuf,
    scripts: PathBuf,
}

/// Speed in one process.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Speed {
    pub(super) prefill_tok_s: f64,
    pub(super) decode_tok_s: f64,
    /// Bandwidth of this machine and the share of it that decoding used, of programs that measure them.
    pub(super) bandwidth: Option<Bandwidth>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bandwidth {
    pub(super) read_gb_s: f64,
    pub(super) roofline_fraction: f64,
}

/// How a process began, and its largest resident set.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Start {
    pub(super) first_token_s: f64,
    pub(super) peak_bytes: f64,
}

/// How much is run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub(super) n_threads: u64,
    pub(super) n_prompt: u64,
    pub(super) n_decode: u64,
}

/// The most likely next token of a text in both programs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answers {
    /// Tokens of the text, as llama.cpp reads it.
    pub(crate) n_tokens: usize,
    /// Whether ours reads the same ids.
    pub(crate) ids_equal: bool,
    pub(crate) theirs: u64,
    pub(crate) ours: u64,
    /// By how much llama.cpp prefers its first choice to its second.
    pub(crate) margin: f64,
    /// Largest difference of the logits that both report.
    pub(crate) max_logit_difference: f64,
}

impl Answers {
    /// Same ids in, same token out.
    pub(crate) fn agree(&self) -> bool {
        self.ids_equal && self.theirs == self.ours
    }
}

impl std::fmt::Display for Answers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            n_tokens,
            ids_equal,
            theirs,
            ours,
            margin,
            max_logit_difference,
        } = self;
        if !ids_equal {
            return write!(f, "the two tokenize differently");
        }
        let verdict = match self.agree() {
            true => format!("the same next token {ours}"),
            false => format!("next token {ours} here, {theirs} in llama.cpp"),
        };
        write!(
            f,
            "{verdict} after {n_tokens} tokens (its margin {margin:.3}, logits differ by {max_logit_difference:.3} at most)"
        )
    }
}

impl Programs {
    /// Fails if Python lacks a package, with the `pip install` command that would help, or our program is not built.
    pub(crate) fn find(python: &Path, larql: Option<PathBuf>) -> Result<Self> {
        let larql = our_program(larql)?;
        let modules: Vec<&str> = PACKAGES.iter().map(|(module, _)| *module).collect();
        let probe = format!(
            "from importlib.util import find_spec\nprint(*(m for m in {modules:?} if find_spec(m) is None))"
        );
        let missing = text_of(Command::new(python).args(["-c", &probe]))?;
        if let Some(advice) = missing_packages(python, &missing) {
            bail!(advice);
        }
        Ok(Self {
            python: python.to_path_buf(),
            larql,
            scripts: process::root().join("xtask/bench_peer"),
        })
    }

    /// One process of llama.cpp: load, warm-up, prompt, decode.
    pub(super) fn llama_speed(&self, model: &Path, work: Work) -> Result<Speed> {
        let mut command = self.llama("speed", model, work.n_threads);
        command.args(["--prompt", &work.n_prompt.to_string()]);
        command.args(["--decode", &work.n_decode.to_string()]);
        speed(&json_of(&mut command)?).context("llama_bench.py speed")
    }

    /// The same of ours.
    pub(super) fn larql_speed(&self, model: &Path, work: Work) -> Result<Speed> {
        let mut command = Command::new(&self.larql);
        command
            .args(["--quiet", "--format", "json", "bench"])
            .arg(model);
        command.args(["--pp", &work.n_prompt.to_string()]);
        command.args(["--tg", &work.n_decode.to_string()]);
        command.args(["--threads", &work.n_threads.to_string()]);
        command.args(["--repeats", "1"]);
        speed(&json_of(&mut command)?).context("larql bench")
    }

    /// From before the file is opened to the first token, without the start of Python.
    pub(super) fn llama_start(&self, model: &Path, n_threads: u64) -> Result<Start> {
        let mut command = self.llama("start", model, n_threads);
        let report = json_of(command.args(["--text", TEXT]))?;
        start(&report, "first_token_s").context("llama_bench.py start")
    }

    /// The whole of `larql run -n 1`.
    pub(super) fn larql_start(&self, model: &Path, n_threads: u64) -> Result<Start> {
        let mut command = Command::new(&self.python);
        command.arg(self.scripts.join("peak.py")).arg(&self.larql);
        command.args(["--quiet", "run"]).arg(model).arg(TEXT);
        command.args(["-n", "1", "--threads", &n_threads.to_string()]);
        let report = json_of(&mut command)?;
        if report["status"] != 0 {
            let log = report["stderr"].as_str().unwrap_or_default();
            bail!("larql run failed: {}", tail(log));
        }
        start(&report, "wall_s").context("larql run")
    }

    /// What both programs say comes after [`TEXT`]. Ours in the arithmetic whose speed is measured.
    pub(crate) fn answers(&self, model: &Path) -> Result<Answers> {
        let theirs = json_of(self.llama("next", model, 1).args(["--text", TEXT]))?;
        let mut command = Command::new(&self.larql);
        command
            .args(["--quiet", "--format", "json", "logits"])
            .arg(model);
        command.args([TEXT, "--top", "5", "--profile", "fast"]);
        let ours = json_of(&mut command)?;
        answers(&theirs, &ours).context("what the programs say about the next token")
    }

    fn llama(&self, task: &str, model: &Path, n_threads: u64) -> Command {
        let mut command = Command::new(&self.python);
        command
            .arg(self.scripts.join("llama_bench.py"))
            .arg(task)
            .arg(model)
            .args(["--threads", &n_threads.to_string()]);
        command
    }

    /// Version of llama-cpp-python, and what our program calls itself.
    pub(super) fn versions(&self) -> Result<[String; 2]> {
        let probe = "import importlib.metadata as m; print(m.version('llama-cpp-python'))";
        let theirs = text_of(Command::new(&self.python).args(["-c", probe]))?;
        let ours = text_of(Command::new(&self.larql).arg("--version"))?;
        Ok([
            format!("llama-cpp-python {}", theirs.trim()),
            ours.trim().to_owned(),
        ])
    }
}

/// The program named, or the one that a release build leaves.
pub(crate) fn our_program(larql: Option<PathBuf>) -> Result<PathBuf> {
    let larql = larql.unwrap_or_else(|| process::root().join("target/release/larql"));
    ensure!(
        larql.is_file(),
        "{} does not exist; run `cargo build --release` first, or name the program with --larql",
        larql.display()
    );
    Ok(larql)
}

/// Fails before anything is measured, and not after the models before this one.
pub(super) fn check_readable(model: &Path) -> Result<()> {
    let metadata = File::open(model)
        .and_then(|file| file.metadata())
        .with_context(|| format!("cannot read {}", model.display()))?;
    ensure!(
        metadata.is_file(),
        "{} is not a file; llama.cpp reads GGUF files only",
        model.display()
    );
    Ok(())
}

fn missing_packages(python: &Path, missing: &str) -> Option<String> {
    let wanted: Vec<&str> = PACKAGES
        .iter()
        .filter(|(module, _)| missing.split_whitespace().any(|name| name == *module))
        .map(|(_, package)| *package)
        .collect();
    let python = python.display();
    (!wanted.is_empty()).then(|| {
        format!(
            "{python} lacks packages; run `{python} -m pip install {}`",
            wanted.join(" ")
        )
    })
}

fn json_of(command: &mut Command) -> Result<Value> {
    let text = text_of(command)?;
    let program = command.get_program().to_string_lossy();
    serde_json::from_str(&text).with_context(|| format!("{program} printed no JSON"))
}

/// What a program prints. Of a failed one only the end of its log is kept, and its arguments, which may be a script, are not.
fn text_of(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr);
        bail!("{program}: {}: {}", output.status, tail(&log));
    }
    String::from_utf8(output.stdout).with_context(|| format!("{program} printed no text"))
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join(" / ")
}

fn speed(report: &Value) -> Result<Speed> {
    let fraction = positive(report, "roofline_fraction");
    let bandwidth = positive(report, "read_gb_s").and_then(|read_gb_s| {
        Ok(Bandwidth {
            read_gb_s,
            roofline_fraction: fraction?,
        })
    });
    Ok(Speed {
        prefill_tok_s: positive(report, "prefill_tok_s")?,
        decode_tok_s: positive(report, "decode_tok_s")?,
        bandwidth: bandwidth.ok(),
    })
}

fn start(report: &Value, time_field: &str) -> Result<Start> {
    Ok(Start {
        first_token_s: positive(report, time_field)?,
        peak_bytes: positive(report, "peak_bytes")?,
    })
}

fn positive(report: &Value, field: &str) -> Result<f64> {
    report[field]
        .as_f64()
        .filter(|value| *value > 0.0 && value.is_finite())
        .with_context(|| format!("`{field}` is {}, not a positive number", report[field]))
}

fn answers(theirs: &Value, ours: &Value) -> Result<Answers> {
    let ids = |report: &Value, field: &str| {
        let ids: Option<Vec<u64>> = report[field]
            .as_array()
            .and_then(|ids| ids.iter().map(Value::as_u64).collect());
        ids.with_context(|| format!("`{field}` is no list of ids"))
    };
    let their_ids = ids(theirs, "ids")?;
    let (their_top, our_top) = (top(theirs)?, top(ours)?);
    let differences = their_top.iter().filter_map(|(id, their_logit)| {
        let (_, our_logit) = our_top.iter().find(|(our_id, _)| our_id == id)?;
        Some((their_logit - our_logit).abs())
    });
    Ok(Answers {
        n_tokens: their_ids.len(),
        ids_equal: their_ids == ids(ours, "prompt_ids")?,
        theirs: their_top[0].0,
        ours: our_top[0].0,
        margin: their_top[0].1 - their_top[1].1,
        max_logit_difference: differences.fold(0.0, f64::max),
    })
}

/// Ids and logits, the most likely first; two at least.
fn top(report: &Value) -> Result<Vec<(u64, f64)>> {
    let top: Option<Vec<(u64, f64)>> = report["top"].as_array().and_then(|top| {
        top.iter()
            .map(|token| Some((token["id"].as_u64()?, token["logit"].as_f64()?)))
            .collect()
    });
    top.filter(|top| top.len() >= 2)
        .context("`top` does not list two tokens with their logits")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_fields_are_skipped_and_unneeded_ones_may_be_absent() {
        let report = json!({
            "prefill_tok_s": 61.5, "decode_tok_s": 8, "read_gb_s": 6.5, "roofline_fraction": 0.25,
            "ceilings": {"int8_gop_s": 1.0}, "profile": "fast",
        });
        let read = speed(&report).unwrap();
        assert_eq!((read.prefill_tok_s, read.decode_tok_s), (61.5, 8.0));
        assert_eq!(
            read.bandwidth,
            Some(Bandwidth {
                read_gb_s: 6.5,
                roofline_fraction: 0.25
            })
        );
        let peer = json!({"prefill_tok_s": 61.5, "decode_tok_s": 8.5, "read_gb_s": 6.5});
        assert_eq!(speed(&peer).unwrap().bandwidth, None);
    }

    #[test]
    fn a_needed_field_that_is_no_speed_is_named() {
        for (value, shown) in [
            (json!(null), "null"),
            (json!("8"), "\"8\""),
            (json!(0), "0"),
            (json!(-2.5), "-2.5"),
        ] {
            let report = json!({"prefill_tok_s": 61.5, "decode_tok_s": value});
            assert_eq!(
                speed(&report).unwrap_err().to_string(),
                format!("`decode_tok_s` is {shown}, not a positive number")
            );
        }
    }

    #[test]
    fn answers_are_compared_by_id_and_by_the_logits_both_report() {
        let theirs = json!({"ids": [1, 4, 9], "top": [
            {"id": 7, "logit": 3.5}, {"id": 2, "logit": 3.0}, {"id": 8, "logit": 1.0}]});
        let ours = json!({"prompt_ids": [1, 4, 9], "profile": "fast", "top": [
            {"id": 7, "logit": 3.25, "prob": 0.5}, {"id": 2, "logit": 3.0}, {"id": 6, "logit": 9.0}]});
        let same = answers(&theirs, &ours).unwrap();
        assert!(same.agree());
        assert_eq!((same.n_tokens, same.margin), (3, 0.5));
        assert_eq!(same.max_logit_difference, 0.25);

        let other_token = json!({"prompt_ids": [1, 4, 9], "top": [
            {"id": 2, "logit": 3.25}, {"id": 7, "logit": 3.0}]});
        assert!(!answers(&theirs, &other_token).unwrap().agree());
        let other_ids = json!({"prompt_ids": [1, 9], "top": ours["top"]});
        let read_otherwise = answers(&theirs, &other_ids).unwrap();
        assert!(!read_otherwise.agree());
        assert_eq!(read_otherwise.to_string(), "the two tokenize differently");
        let without_logits = json!({"prompt_ids": [1], "top": [{"id": 2}]});
        assert!(answers(&theirs, &without_logits).is_err());
    }

    #[test]
    fn a_missing_package_is_named_as_pip_knows_it() {
        let advice = missing_packages(Path::new("/v/python"), "llama_cpp\n").unwrap();
        assert_eq!(
            advice,
            "/v/python lacks packages; run `/v/python -m pip install llama-cpp-python`"
        );
        assert_eq!(missing_packages(Path::new("python"), "\n"), None);
    }

    #[test]
    fn a_program_that_fails_is_named_with_the_end_of_its_log() {
        let absent = text_of(&mut Command::new("/no/such/python3")).unwrap_err();
        assert_eq!(absent.to_string(), "cannot start /no/such/python3");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let failed = text_of(Command::new(cargo).arg("no-such-subcommand")).unwrap_err();
        assert!(
            failed.to_string().contains("no-such-subcommand"),
            "{failed}"
        );
    }

    #[test]
    fn files_that_cannot_be_measured_are_named_beforehand() {
        let folder = tempfile::tempdir().unwrap();
        let message = |path: &Path| format!("{:#}", check_readable(path).unwrap_err());
        let absent = message(&folder.path().join("absent.gguf"));
        assert!(absent.contains("absent.gguf: No such file"), "{absent}");
        assert!(message(folder.path()).ends_with("is not a file; llama.cpp reads GGUF files only"));
    }

    #[test]
    fn only_the_end_of_a_log_is_kept() {
        assert_eq!(tail("a\nb\n\nc\nd\n"), "b / c / d");
        assert_eq!(tail(""), "");
    }
}
