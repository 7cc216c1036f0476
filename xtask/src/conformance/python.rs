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
        Ok(self
            .report("llama_top1.py", model, &Value::from(ids), None)?
            .1)
    }

    /// What transformers computes from a folder or a GGUF file.
    pub(super) fn transformers(&self, model: &Path, ids: &[u32]) -> Result<Rows> {
        Ok(self
            .report("hf_logits.py", model, &Value::from(ids), None)?
            .1)
    }

    /// The same with the configuration of a folder.
    pub(super) fn transformers_as(&self, model: &Path, ids: &[u32], config: &Path) -> Result<Rows> {
        Ok(self
            .report("hf_logits.py", model, &Value::from(ids), Some(config))?
            .1)
    }

    /// The ids that transformers' tokenizer makes of a text, and what its model computes from them.
    pub(super) fn transformers_text(&self, model: &Path, text: &str) -> Result<(Vec<u32>, Rows)> {
        let (report, rows) = self.report("hf_logits.py", model, &Value::from(text), None)?;
        Ok((serde_json::from_value(report["ids"].clone())?, rows))
    }

    /// Makes, as `out/name`, the model that stands in for a fixture which llama.cpp cannot express.
    pub(super) fn make_peer(&self, out: &Path, name: &str) -> Result<()> {
        let script = process::root().join("tools/golden/make_golden.py");
        let mut command = Command::new(&self.program);
        process::stdout(command.arg(script).arg(out).args(["--peers", name])).map(drop)
    }

    /// What a script prints, and the logits in it. Only the message of a failed script is kept: the rest is a log.
    fn report(
        &self,
        script: &str,
        model: &Path,
        input: &Value,
        config: Option<&Path>,
    ) -> Result<(Value, Rows)> {
        let dir = tempfile::tempdir()?;
        let input_file = dir.path().join("input.json");
        fs::write(&input_file, serde_json::to_vec(input)?)?;
        let output = Command::new(&self.program)
            .arg(self.scripts.join(script))
            .arg(model)
            .arg(&input_file)
            .args(config)
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
        let rows = rows(&report).with_context(|| format!("{script} printed no logits"))?;
        Ok((report, rows))
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
