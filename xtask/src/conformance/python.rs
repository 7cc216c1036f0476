//! The Python that runs the other programs: which packages it has, and the scripts of `xtask/conformance`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::process;

/// Module name and the name under which `pip install` knows it.
const PACKAGES: &[(&str, &str)] = &[
    ("numpy", "numpy"),
    ("safetensors", "safetensors"),
    ("gguf", "gguf"),
    ("llama_cpp", "llama-cpp-python"),
    ("torch", "torch"),
    ("transformers", "transformers"),
    ("accelerate", "accelerate"),
];

/// Logits of every position, `[n_positions][d_vocab]`.
pub(super) type Rows = Vec<Vec<f32>>;

/// An interpreter that has every package.
pub(super) struct Python {
    program: PathBuf,
    scripts: PathBuf,
}

impl Python {
    /// Fails with the `pip install` command that would help.
    pub(super) fn find(program: &Path) -> Result<Self> {
        let modules: Vec<&str> = PACKAGES.iter().map(|(module, _)| *module).collect();
        let probe = format!(
            "from importlib.util import find_spec\nprint(*(m for m in {modules:?} if find_spec(m) is None))"
        );
        let missing = process::stdout(Command::new(program).args(["-c", &probe]))?;
        let wanted: Vec<&str> = PACKAGES
            .iter()
            .filter(|(module, _)| missing.split_whitespace().any(|name| name == *module))
            .map(|(_, package)| *package)
            .collect();
        ensure!(
            wanted.is_empty(),
            "{} lacks packages; run `{} -m pip install {}`",
            program.display(),
            program.display(),
            wanted.join(" ")
        );
        Ok(Self {
            program: program.to_path_buf(),
            scripts: process::root().join("xtask/conformance"),
        })
    }

    /// What llama.cpp computes from a GGUF file.
    pub(super) fn llama_cpp(&self, model: &Path, ids: &[u32]) -> Result<Rows> {
        self.logits("llama_top1.py", model, ids)
    }

    /// What transformers computes from a folder or a GGUF file.
    pub(super) fn transformers(&self, model: &Path, ids: &[u32]) -> Result<Rows> {
        self.logits("hf_logits.py", model, ids)
    }

    /// Only the message of a failed script is kept: the rest of its output is a log.
    fn logits(&self, script: &str, model: &Path, ids: &[u32]) -> Result<Rows> {
        let dir = tempfile::tempdir()?;
        let ids_file = dir.path().join("ids.json");
        fs::write(&ids_file, serde_json::to_vec(ids)?)?;
        let output = Command::new(&self.program)
            .arg(self.scripts.join(script))
            .arg(model)
            .arg(&ids_file)
            .output()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr);
            let last: Vec<&str> = log.lines().rev().take(3).collect();
            let message: Vec<&str> = last.into_iter().rev().collect();
            bail!("{script}: {}: {}", output.status, message.join(" / "));
        }
        let report: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("{script} printed no JSON"))?;
        rows(&report).with_context(|| format!("{script} printed no logits"))
    }
}

fn rows(report: &Value) -> Option<Rows> {
    report["logits"]
        .as_array()?
        .iter()
        .map(|row| {
            row.as_array()?
                .iter()
                .map(|value| Some(value.as_f64()? as f32))
                .collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_with_a_word_in_it_is_no_row() {
        assert_eq!(
            rows(&json!({"logits": [[1.5, -2.0], [0.25, 3.0]]})),
            Some(vec![vec![1.5, -2.0], vec![0.25, 3.0]])
        );
        assert_eq!(rows(&json!({"logits": [[1.5, "nan"]]})), None);
        assert_eq!(rows(&json!({"top1": [1]})), None);
    }

    #[test]
    fn a_program_that_is_no_python_is_named() {
        let error = Python::find(Path::new("/no/such/python3")).err().unwrap();
        assert!(error.to_string().contains("python3 -c"), "{error:#}");
    }
}
