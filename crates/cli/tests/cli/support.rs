//! Running `larql` and what it runs on.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::{fs, io};

use flate2::read::GzDecoder;
use serde_json::Value;
use tempfile::TempDir;

/// Variables that would change what is tested.
const VARIABLES: [&str; 13] = [
    "LARQL_THREADS",
    "LARQL_CPU_ARITHMETIC",
    "LARQL_HISTORY",
    "LARQL_MODELS",
    "NO_COLOR",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
    "HF_TOKEN",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "HTTPS_PROXY",
];

/// A finished run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A command under construction.
pub(crate) struct Larql {
    command: Command,
    stdin: Option<String>,
}

/// `larql` with these arguments, in an environment of its own.
pub(crate) fn larql<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Larql {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larql"));
    command.args(args);
    in_own_environment(command)
}

/// The same from a shell that has executed `before`.
#[cfg(unix)]
pub(crate) fn larql_in_shell<S: AsRef<OsStr>>(
    before: &str,
    args: impl IntoIterator<Item = S>,
) -> Larql {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{before}; exec \"$@\""), "sh"])
        .arg(env!("CARGO_BIN_EXE_larql"))
        .args(args);
    in_own_environment(command)
}

fn in_own_environment(mut command: Command) -> Larql {
    command.env("LARQL_HISTORY", "").current_dir(scratch());
    VARIABLES
        .iter()
        .filter(|name| **name != "LARQL_HISTORY")
        .for_each(|name| {
            command.env_remove(name);
        });
    Larql {
        command,
        stdin: None,
    }
}

impl Larql {
    pub(crate) fn stdin(mut self, text: &str) -> Self {
        self.stdin = Some(text.to_owned());
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    pub(crate) fn run(mut self) -> Ran {
        self.command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self.command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // A command that does not read its input may be gone before it is written.
        let _ = input.write_all(self.stdin.unwrap_or_default().as_bytes());
        drop(input);
        let output = child.wait_with_output().unwrap();
        Ran {
            code: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs with a reader that takes `n` bytes of stdout and goes.
    pub(crate) fn run_with_impatient_reader(mut self, n: usize) -> (i32, String) {
        self.command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self.command.spawn().unwrap();
        let mut start = vec![0; n];
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut start).unwrap();
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }

    /// Runs, sends SIGINT when the first byte of stdout is there, and reads on to the end.
    #[cfg(unix)]
    pub(crate) fn run_and_press_ctrl_c(mut self) -> (i32, String) {
        self.command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self.command.spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0]).unwrap();
        let sent = Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
        stdout.read_to_end(&mut Vec::new()).unwrap();
        let output = child.wait_with_output().unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }

    /// Runs and expects success with nothing but JSON on stdout.
    pub(crate) fn json(self) -> Value {
        let ran = self.run();
        assert_eq!(ran.code, 0, "{ran:?}");
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
    }
}

impl Ran {
    /// Exit code and both streams, with what differs between machines replaced.
    pub(crate) fn snapshot(&self) -> String {
        let text = format!(
            "exit {}\n--- stdout\n{}--- stderr\n{}",
            self.code, self.stdout, self.stderr
        );
        text.replace(&atlas().display().to_string(), "[ATLAS]")
            .replace("larql.exe", "larql")
    }

    /// The error object of the JSON form.
    pub(crate) fn error(&self) -> Value {
        let value: Value =
            serde_json::from_str(&self.stderr).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        let error = &value["error"];
        assert!(
            error["kind"].is_string() && error["message"].is_string(),
            "{self:?}"
        );
        assert!(
            error["hint"].is_string() || error["hint"].is_null(),
            "{self:?}"
        );
        error.clone()
    }
}

/// A folder for this test binary's files, kept between runs.
fn scratch() -> &'static Path {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(path).unwrap();
    path
}

/// The embedded model as a checkpoint folder.
pub(crate) fn atlas() -> &'static Path {
    static ATLAS: OnceLock<PathBuf> = OnceLock::new();
    ATLAS.get_or_init(|| {
        let ready = scratch().join("atlas");
        if !ready.exists() {
            let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/atlas");
            let staging = TempDir::new_in(scratch()).unwrap();
            for name in [
                "config.json",
                "tokenizer.json",
                "tokenizer_config.json",
                "generation_config.json",
            ] {
                fs::copy(assets.join(name), staging.path().join(name)).unwrap();
            }
            let packed = fs::File::open(assets.join("model.safetensors.gz")).unwrap();
            let mut weights = fs::File::create(staging.path().join("model.safetensors")).unwrap();
            io::copy(&mut GzDecoder::new(packed), &mut weights).unwrap();
            // Another process of the same tests may have been faster, which is as good.
            let _ = fs::rename(staging.path(), &ready);
        }
        ready
    })
}

/// The embedded model as an argument.
pub(crate) fn model() -> &'static str {
    atlas().to_str().unwrap()
}

/// A copy of the embedded model's folder, to be changed.
pub(crate) fn copy_of_model() -> TempDir {
    let dir = TempDir::new().unwrap();
    for entry in fs::read_dir(atlas()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

/// A vindex of the embedded model in `dir`.
pub(crate) fn vindex(dir: &TempDir) -> String {
    let out = dir.path().join("atlas.vindex").to_str().unwrap().to_owned();
    let ran = larql(["extract", model(), "-o", &out, "--quiet"]).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    out
}

/// A reference checkpoint.
pub(crate) fn reference(family: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testkit/data/parity")
        .join(family);
    path.to_str().unwrap().to_owned()
}
