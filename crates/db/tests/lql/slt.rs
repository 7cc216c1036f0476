//! Runs `tests/slt/*.slt`.
//!
//! A file is a list of cases, separated by empty lines; `#` begins a comment line. `open atlas`, `open vindex` and `open none`
//! begin a new session. `query` is followed by a statement, `----`, and the rows, whose notes begin with `--`.
//! `statement ok` and `statement error MESSAGE` are followed by a statement; the message is complete, with its hint after
//! ` / `, and the text it points at before it in backticks.
//! With `LARQL_BLESS` set, rows and messages are written instead of compared.

use std::fs;
use std::path::{Path, PathBuf};

use larql_db::{DbError, Session};
use larql_vindex::Level;
use tempfile::TempDir;

use super::script::{atlas_session, lines, placed, run, session, vindex};

struct Runner {
    session: Session,
    vindex: Option<(TempDir, PathBuf)>,
}

fn refusal(text: &str, error: &DbError) -> String {
    match error {
        DbError::Query {
            span,
            message,
            hint,
        } => {
            let hint = hint
                .as_ref()
                .map_or(String::new(), |hint| format!(" / {hint}"));
            format!(
                "`{}` {message}{hint}",
                text[span.start..span.end].replace('\n', " ")
            )
        }
        other => placed(&other.to_string()),
    }
}

fn run_case(runner: &mut Runner, case: &str) -> Result<String, String> {
    let (head, body) = case.split_once('\n').unwrap_or((case, ""));
    if let Some(what) = head.strip_prefix("open ") {
        runner.vindex = None;
        runner.session = match what {
            "atlas" => atlas_session(),
            "none" => session(),
            "vindex" => {
                let made = vindex(Level::All);
                let mut session = session();
                session.open(&made.1).unwrap();
                runner.vindex = Some(made);
                session
            }
            other => return Err(format!("cannot open {other}")),
        };
        return Ok(case.to_owned());
    }
    if head == "query" {
        let (text, _) = body.split_once("\n----").unwrap_or((body, ""));
        let rows = run(&mut runner.session, text).map_err(|error| format!("{text}: {error}"))?;
        return Ok(format!("query\n{text}\n----\n{}", lines(&rows).join("\n")));
    }
    if head == "statement ok" {
        run(&mut runner.session, body).map_err(|error| format!("{body}: {error}"))?;
        return Ok(case.to_owned());
    }
    if head.starts_with("statement error") {
        return match run(&mut runner.session, body) {
            Ok(_) => Err(format!("{body}: was executed")),
            Err(error) => Ok(format!("statement error {}\n{body}", refusal(body, &error))),
        };
    }
    Err(format!("unknown case `{head}`"))
}

fn without_comments(case: &str) -> String {
    case.lines()
        .filter(|line| !line.starts_with('#'))
        .collect::<Vec<_>>()
        .join("\n")
}

fn run_file(path: &Path, is_blessing: bool) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let mut runner = Runner {
        session: session(),
        vindex: None,
    };
    let (mut failures, mut blessed) = (Vec::new(), Vec::new());
    for case in text.trim_end().split("\n\n") {
        let bare = without_comments(case);
        if bare.is_empty() {
            blessed.push(case.to_owned());
            continue;
        }
        match run_case(&mut runner, &bare) {
            Ok(got) => {
                if got != bare && !is_blessing {
                    failures.push(format!(
                        "{}\nexpected:\n{bare}\ngot:\n{got}\n",
                        path.display()
                    ));
                }
                let comments = case
                    .lines()
                    .filter(|line| line.starts_with('#'))
                    .map(|line| format!("{line}\n"));
                blessed.push(format!("{}{got}", comments.collect::<String>()));
            }
            Err(failure) => {
                failures.push(format!("{}: {failure}", path.display()));
                blessed.push(case.to_owned());
            }
        }
    }
    if is_blessing {
        fs::write(path, blessed.join("\n\n") + "\n").unwrap();
    }
    failures
}

#[test]
fn every_case_gives_its_rows() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slt");
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.retain(|path| path.extension().is_some_and(|ext| ext == "slt"));
    files.sort();
    assert!(files.len() >= 5, "the cases are there");
    let is_blessing = std::env::var_os("LARQL_BLESS").is_some();
    let failures: Vec<String> = files
        .iter()
        .flat_map(|path| run_file(path, is_blessing))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
