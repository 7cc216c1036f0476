//! Hostile text: no panic, bounded time, limits that hold.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use larql_lql::{
    MAX_DEPTH, MAX_INPUT_BYTES, MAX_LIST_ITEMS, ParseErrorKind, completions, is_complete, parse,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::round_trip::statement;

/// Everything a caller may do with a text; whatever is accepted reads back equal.
fn exercise(text: &str) {
    match parse(text) {
        Ok(statements) => {
            let printed: Vec<String> = statements.iter().map(ToString::to_string).collect();
            assert_eq!(
                parse(&printed.join(";\n")).as_ref(),
                Ok(&statements),
                "{text:?}"
            );
        }
        Err(error) => {
            assert!(
                error.span.start <= error.span.end && error.span.end <= text.len(),
                "{error:?} {text:?}"
            );
            assert!(
                text.is_char_boundary(error.span.start) && text.is_char_boundary(error.span.end),
                "{text:?}"
            );
            assert_eq!(error.render(text).lines().count(), 3, "{text:?}");
            assert_ne!(error.hint().as_deref(), Some(""));
        }
    }
    is_complete(text);
    completions(text);
}

/// The slowest of a few tries would measure the machine; the fastest measures the code.
fn fastest(mut run: impl FnMut()) -> Duration {
    let timed = (0..3).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed()
    });
    timed.min().unwrap()
}

#[test]
fn corpus_is_replayed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut n_files = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(path.extension().unwrap(), "lql", "{path:?}");
        let bytes = fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        exercise(&text);
        let accepted = parse(&text).is_ok();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert_eq!(accepted, name.starts_with("ok-"), "{name}");
        n_files += 1;
    }
    assert!(n_files >= 12, "{n_files}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..200)) {
        exercise(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn random_token_soup_does_no_harm(words in vec(word(), 0..40)) {
        exercise(&words.join(" "));
    }

    #[test]
    fn mutated_statements_do_no_harm(statement in statement(), edits in vec((any::<usize>(), edit()), 1..6)) {
        let mut chars: Vec<char> = statement.to_string().chars().collect();
        for (place, edit) in edits {
            let place = place % (chars.len() + 1);
            match edit {
                Edit::Insert(ch) => chars.insert(place, ch),
                Edit::Delete => drop(chars.drain(place..(place + 1).min(chars.len()))),
                Edit::Truncate => chars.truncate(place),
                Edit::Repeat => chars.extend_from_within(place..),
            }
        }
        exercise(&chars.into_iter().collect::<String>());
    }
}

#[derive(Clone, Debug)]
enum Edit {
    Insert(char),
    Delete,
    Truncate,
    Repeat,
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        any::<char>().prop_map(Edit::Insert),
        prop::sample::select(" \"'\\()-;,.=<>!*0e".chars().collect::<Vec<_>>())
            .prop_map(Edit::Insert),
        Just(Edit::Delete),
        Just(Edit::Truncate),
        Just(Edit::Repeat),
    ]
}

fn word() -> impl Strategy<Value = String> {
    let signs = [
        "(", ")", ",", ";", "-", "--", "=", "<", "!=", "*", "'x'", "1", "2.5", "1e9", "\n", "x",
        "INSERT",
    ];
    prop_oneof![
        prop::sample::select(larql_lql::KEYWORDS),
        prop::sample::select(signs.to_vec())
    ]
    .prop_map(str::to_owned)
}

fn nested(depth: usize, open: &str, close: &str) -> String {
    format!(
        "SELECT * FROM EDGES WHERE {}a = 1{}",
        open.repeat(depth),
        close.repeat(depth)
    )
}

#[test]
fn nesting_is_bounded() {
    for (open, close) in [
        ("(", ")"),
        ("NOT ", ""),
        ("NOT (", ")"),
        ("(b = 2 AND ", ")"),
    ] {
        let levels = if open == "NOT (" { 2 } else { 1 };
        assert!(
            parse(&nested(MAX_DEPTH / levels, open, close)).is_ok(),
            "{open}"
        );
        let error = parse(&nested(MAX_DEPTH / levels + 1, open, close)).unwrap_err();
        assert_eq!(error.kind, ParseErrorKind::TooDeep, "{open}");
        // Far beyond the limit the stack must hold as well.
        assert_eq!(
            parse(&nested(50_000, open, "")).unwrap_err().kind,
            ParseErrorKind::TooDeep
        );
    }
}

#[test]
fn the_deepest_expression_fits_a_small_stack() {
    // Half of what a spawned thread has, without optimization.
    let deepest = nested(MAX_DEPTH, "(b = 2 AND ", ")");
    let thread = std::thread::Builder::new().stack_size(1 << 20);
    let printed = thread.spawn(move || parse(&deepest).unwrap()[0].clone().to_string());
    assert!(
        printed
            .unwrap()
            .join()
            .unwrap()
            .ends_with(&")".repeat(MAX_DEPTH - 1))
    );
}

#[test]
fn lists_are_bounded() {
    let shapes: [(&str, &str, &str, &str); 7] = [
        ("SELECT * FROM EDGES WHERE a IN (", "1", ",", ")"),
        ("SELECT ", "a", ",", " FROM EDGES"),
        ("SELECT * FROM EDGES ORDER BY ", "a", ",", ""),
        ("SELECT * FROM EDGES WHERE ", "a = 1", " AND ", ""),
        ("SELECT * FROM EDGES WHERE ", "a = 1", " OR ", ""),
        ("DESCRIBE 'x' RELATIONS (", "a", ",", ")"),
        ("CREATE RELATION r TEMPLATES (", "'{e}'", ",", ")"),
    ];
    for (head, item, joint, tail) in shapes {
        let list = |n: usize| format!("{head}{}{tail}", vec![item; n].join(joint));
        let longest = list(MAX_LIST_ITEMS);
        let printed = parse(&longest).unwrap()[0].to_string();
        assert!(parse(&printed).is_ok(), "{head}");
        let error = parse(&list(MAX_LIST_ITEMS + 1)).unwrap_err();
        assert_eq!(error.kind, ParseErrorKind::TooManyItems, "{head}");
    }
}

#[test]
fn length_is_bounded() {
    let longest = format!("USE '{}'", "x".repeat(MAX_INPUT_BYTES - 6));
    assert_eq!(longest.len(), MAX_INPUT_BYTES);
    assert_eq!(parse(&longest).unwrap().len(), 1);
    let error = parse(&format!("{longest} ")).unwrap_err();
    assert_eq!(
        error.kind,
        ParseErrorKind::TooLong {
            n_bytes: MAX_INPUT_BYTES + 1
        }
    );
}

#[test]
fn time_is_linear_in_the_text() {
    // Shapes that would take quadratic time or worse if the parser went back or copied.
    for unit in [
        "STATS;",
        "\"",
        "(",
        "NOT ",
        "-- x\n",
        "a = 1 AND ",
        "1 ",
        "'\\n';",
        "--",
        "\u{e9}",
    ] {
        let text = |n_bytes: usize| {
            format!(
                "SELECT * FROM EDGES WHERE {}",
                unit.repeat(n_bytes / unit.len())
            )
        };
        let (short, long) = (text(MAX_INPUT_BYTES / 64), text(MAX_INPUT_BYTES / 4));
        let run = |text: &str| fastest(|| drop(parse(text)));
        let (short, long) = (run(&short), run(&long));
        // Sixteen times the text: quadratic would be 256 times the time.
        assert!(
            long < short * 100 + Duration::from_millis(50),
            "{unit:?} {short:?} {long:?}"
        );
    }
}

#[test]
fn ordinary_statements_are_read_in_far_less_than_ten_milliseconds() {
    let text = format!("{} LIMIT 3", nested(MAX_DEPTH, "(", ")"));
    assert!(fastest(|| exercise(&text)) < Duration::from_millis(10));
}
