//! Addresses in models with experts: (layer, expert, neuron), and what is said of an address that no feature has.

use larql_db::address::{FeatureAddress, address_of};
use larql_db::{Cell, DbError, Rows};
use larql_models::spec::FfnPart;

use super::script::{family_with_bytes, lines, run, session};

/// The values of a column.
fn column<'a>(rows: &'a Rows, name: &str) -> Vec<&'a Cell> {
    let at = rows.columns.iter().position(|column| column == name);
    let at = at.unwrap_or_else(|| panic!("no column {name} in {:?}", rows.columns));
    rows.rows.iter().map(|row| &row[at]).collect()
}

#[test]
fn an_address_is_that_of_the_parts_one_after_another() {
    for family in larql_testkit::FAMILIES {
        let mut session = session();
        session
            .open(&larql_testkit::parity_fixture(family))
            .unwrap();
        let spec = session.database().unwrap().spec();
        for (layer, of) in spec.layers.iter().enumerate() {
            let mut feature = 0;
            for (part, ffn) in of.ffn.parts() {
                for neuron in 0..ffn.d_mlp {
                    let address = address_of(&of.ffn, feature);
                    assert_eq!(address, Some(FeatureAddress { part, neuron }), "{family}");
                    feature += 1;
                }
            }
            assert_eq!(u64::from(feature), spec.n_features(layer).unwrap());
            assert_eq!(address_of(&of.ffn, feature), None, "{family}");
        }
    }
}

#[test]
fn features_are_selected_by_expert_and_neuron() {
    let mut session = session();
    session
        .open(&larql_testkit::parity_fixture("deepseek-v2"))
        .unwrap();
    let mut answer = |text: &str| lines(&run(&mut session, text).unwrap());
    assert_eq!(
        answer(
            "SELECT layer, feature, ffn, expert, neuron FROM FEATURES WHERE layer = 2 AND expert = 3 AND neuron >= 46"
        ),
        [
            "layer | feature | ffn | expert | neuron",
            "2 | 190 | expert | 3 | 46",
            "2 | 191 | expert | 3 | 47",
        ]
    );
    assert_eq!(
        answer(
            "SELECT layer, feature, expert, neuron FROM FEATURES WHERE ffn = \"shared\" AND neuron = 5"
        ),
        [
            "layer | feature | expert | neuron",
            "1 | 389 | NULL | 5",
            "2 | 389 | NULL | 5",
            "3 | 389 | NULL | 5",
        ]
    );
    // The features of the dense layer, and those that a dense FFN beside experts has.
    assert_eq!(
        answer("SELECT layer, feature, neuron FROM FEATURES WHERE ffn = \"dense\" LIMIT 1"),
        ["layer | feature | neuron", "0 | 0 | 0"]
    );
    session
        .open(&larql_testkit::parity_fixture("gemma4-moe"))
        .unwrap();
    let beside = run(
        &mut session,
        "SELECT feature, neuron FROM FEATURES WHERE layer = 1 AND ffn = \"dense\" LIMIT 1",
    );
    assert_eq!(lines(&beside.unwrap()), ["feature | neuron", "288 | 0"]);
}

#[test]
fn an_address_that_no_feature_has_is_refused_with_the_range() {
    let mut session = session();
    session
        .open(&larql_testkit::parity_fixture("deepseek-v2"))
        .unwrap();
    for (condition, at, message, hint) in [
        (
            "expert = 99",
            "99",
            "expert 99: this model has experts 0-7",
            None,
        ),
        (
            "8 != expert",
            "8",
            "expert 8: this model has experts 0-7",
            None,
        ),
        (
            "expert IN (1, 8)",
            "8",
            "expert 8: this model has experts 0-7",
            None,
        ),
        (
            "expert NOT BETWEEN -1 AND 3",
            "-1",
            "expert -1: this model has experts 0-7",
            None,
        ),
        (
            "layer > 1 AND expert = 8",
            "8",
            "expert 8: layers 2-3 have experts 0-7",
            None,
        ),
        (
            "layer = 0 AND expert = 0",
            "0",
            "expert 0: layer 0 has no routed experts",
            Some("experts are in layers 1-3"),
        ),
        (
            "feature = 432",
            "432",
            "feature 432: this model has features 0-431",
            None,
        ),
        (
            "feature = 104 AND layer = 0",
            "104",
            "feature 104: layer 0 has features 0-103",
            None,
        ),
        (
            "neuron = 104",
            "104",
            "neuron 104: the widest FFN here has neurons 0-103",
            None,
        ),
        (
            "neuron = 48 AND layer = 1 AND expert = 7",
            "48",
            "neuron 48: this FFN has neurons 0-47",
            None,
        ),
        (
            "neuron = 1.5",
            "1.5",
            "neuron 1.5: the widest FFN here has neurons 0-103",
            None,
        ),
        (
            "ffn = \"router\"",
            "\"router\"",
            "no FFN is called \"router\"",
            Some("known: dense, expert, shared"),
        ),
    ] {
        let text = format!("SELECT layer FROM FEATURES WHERE {condition}");
        match run(&mut session, &text) {
            Err(DbError::Query {
                span,
                message: got,
                hint: got_hint,
            }) => {
                assert_eq!(got, message);
                assert_eq!(got_hint.as_deref(), hint, "{condition}");
                assert!(text[span.start..span.end].ends_with(at), "{condition}");
            }
            other => panic!("{condition}: {other:?}"),
        }
    }
    // Comparisons that bound a range are no mistake.
    for condition in ["feature < 9999", "expert > 90", "layer > 7 AND expert = 3"] {
        let text = format!("SELECT layer FROM FEATURES WHERE {condition}");
        run(&mut session, &text).unwrap_or_else(|error| panic!("{condition}: {error}"));
    }
    let text = "SHOW FEATURES 0 WHERE feature = 104";
    assert!(run(&mut session, text).is_err());
    session
        .open(&larql_testkit::parity_fixture("llama"))
        .unwrap();
    let error = run(&mut session, "SELECT layer FROM FEATURES WHERE expert = 0").unwrap_err();
    assert_eq!(
        error.to_string(),
        "expert 0: this model has no routed experts"
    );
}

#[test]
fn a_walk_names_experts_and_what_the_router_gave_them() {
    for (family, parts) in [
        ("deepseek-v2", vec![FfnPart::Dense, FfnPart::Shared]),
        ("gemma4-moe", vec![FfnPart::Dense]),
    ] {
        let folder = family_with_bytes(family);
        let mut session = session();
        session.open(folder.path()).unwrap();
        let spec = session.database().unwrap().spec().clone();
        let rows = run(&mut session, "WALK \"abc\" TOP 400").unwrap();
        let words = column(&rows, "ffn");
        for (part, word) in [(FfnPart::Dense, "dense"), (FfnPart::Shared, "shared")] {
            let has = words.iter().any(|cell| **cell == Cell::from(word));
            assert_eq!(has, parts.contains(&part), "{family}: {word}");
        }
        let numbers = |name: &str| column(&rows, name).into_iter().cloned().collect::<Vec<_>>();
        let (layers, features) = (numbers("layer"), numbers("feature"));
        let (experts, neurons) = (numbers("expert"), numbers("neuron"));
        let (weights, gates) = (numbers("expert_weight"), numbers("gate"));
        for row in 0..rows.rows.len() {
            let [Cell::Integer(layer), Cell::Integer(feature)] = [&layers[row], &features[row]]
            else {
                panic!("{family}: no address")
            };
            let ffn = &spec.layers[usize::try_from(*layer).unwrap()].ffn;
            let address = address_of(ffn, u32::try_from(*feature).unwrap()).unwrap();
            assert_eq!(neurons[row], address.neuron.into(), "{family}");
            match address.part {
                FfnPart::Expert(expert) => {
                    assert_eq!(experts[row], expert.into(), "{family}");
                    // The gates of an expert that did not run were never computed.
                    assert_eq!(weights[row] == Cell::Real(0.0), gates[row] == Cell::Null);
                }
                FfnPart::Shared | FfnPart::Dense => {
                    assert_eq!((&experts[row], &weights[row]), (&Cell::Null, &Cell::Null));
                }
            }
        }
        // Two of the experts run, and the first row of a mixture says which.
        for (row, routed) in column(&rows, "routed").into_iter().enumerate() {
            let is_first = column(&rows, "rank")[row] == &Cell::Integer(1);
            let has_router = !(family == "deepseek-v2" && layers[row] == Cell::Integer(0));
            match routed {
                Cell::Text(text) => {
                    assert!(is_first && has_router);
                    assert_eq!(text.matches('E').count(), 2, "{text}");
                }
                Cell::Null => assert!(!is_first || !has_router, "{family}: row {row}"),
                Cell::Integer(_) | Cell::Real(_) => panic!("{family}: {routed:?}"),
            }
        }
    }
}

#[test]
fn describe_names_experts_and_neurons_and_bytes_that_are_no_text() {
    let folder = family_with_bytes("deepseek-v2");
    let mut session = session();
    session.open(folder.path()).unwrap();
    let text = "DESCRIBE \"France\" RELATION capital TOP 1 VERBOSE";
    let rows = run(&mut session, text).unwrap();
    let (kinds, parts) = (column(&rows, "kind"), column(&rows, "part"));
    let (experts, neurons) = (column(&rows, "expert"), column(&rows, "neuron"));
    let mut n_experts = 0;
    for row in 0..rows.rows.len() {
        let (Cell::Text(part), Cell::Integer(neuron)) = (parts[row], neurons[row]) else {
            continue;
        };
        match experts[row] {
            Cell::Integer(expert) => {
                n_experts += 1;
                assert_eq!(*part, format!("E{expert}/N{neuron}"));
            }
            Cell::Null | Cell::Real(_) | Cell::Text(_) => {
                assert!(part == &format!("shared/N{neuron}") || part == &format!("F{neuron}"));
            }
        }
    }
    assert!(n_experts > 0, "{kinds:?}");
    let listed = lines(&run(&mut session, "SHOW FEATURES 1 LIMIT 20").unwrap()).join("\n");
    assert!(listed.contains("<0x"), "{listed}");
    assert!(!listed.contains('\u{fffd}'), "{listed}");
    let next = lines(&run(&mut session, "INFER \"x\" TOP 40").unwrap()).join("\n");
    assert!(next.contains("<0x") && !next.contains('\u{fffd}'), "{next}");
}
