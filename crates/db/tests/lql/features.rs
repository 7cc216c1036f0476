//! What features say, against the definition written out.

use larql_db::features::{
    down_norms, feature_tokens, gate_dots, gate_norms, token_vector, up_norms,
};
use larql_db::{Cell, Database, DbError};
use larql_engine::EngineError;
use larql_models::roles::{FfnRoles, LayerTensor, TensorRole};
use larql_models::spec::{FfnPart, NormKind};
use larql_vindex::Level;

use super::script::{atlas_session, lines, run, session, vindex};

const LAYER: usize = 2;

fn matrix(db: &Database, role: TensorRole) -> (Vec<f32>, usize) {
    let tensor = db.checkpoint().unwrap().tensor(role).unwrap();
    let cols = usize::try_from(*tensor.shape.last().unwrap()).unwrap();
    (tensor.to_f32(), cols)
}

fn of_layer(tensor: LayerTensor) -> TensorRole {
    TensorRole::Layer(u32::try_from(LAYER).unwrap(), tensor)
}

/// Logits that one unit of a feature's activation writes, by the definition.
fn written(db: &Database, layer: usize, feature: usize) -> Vec<f64> {
    let of_layer = |tensor| TensorRole::Layer(u32::try_from(layer).unwrap(), tensor);
    let has = |role: TensorRole| db.checkpoint().unwrap().roles().contains(&role);
    let mut within = feature;
    let parts = db.spec().layers[layer].ffn.parts();
    let (part, _) = parts
        .into_iter()
        .find(|(_, spec)| {
            let is_here = within < spec.d_mlp as usize;
            within -= if is_here { 0 } else { spec.d_mlp as usize };
            is_here
        })
        .unwrap();
    let roles = FfnRoles::new(u32::try_from(layer).unwrap(), part);
    let (down, d_mlp) = matrix(db, roles.down);
    let head = if has(TensorRole::Head) {
        TensorRole::Head
    } else {
        TensorRole::TokenEmbedding
    };
    let (head, d_model) = matrix(db, head);
    let weight = |role| {
        if has(role) {
            matrix(db, role).0
        } else {
            vec![1.0; d_model]
        }
    };
    let (post, last) = (
        weight(of_layer(LayerTensor::FfnPostNorm)),
        weight(TensorRole::FinalNorm),
    );
    // Where experts and a dense FFN run side by side, each has a norm of its own before the common one.
    let own = weight(of_layer(match part {
        FfnPart::Dense => LayerTensor::DensePostNorm,
        FfnPart::Expert(_) | FfnPart::Shared => LayerTensor::ExpertsPostNorm,
    }));
    let mut direction: Vec<f64> = (0..d_model)
        .map(|i| f64::from(own[i]) * f64::from(post[i]) * f64::from(down[i * d_mlp + within]))
        .collect();
    if db.spec().final_norm.kind != NormKind::Rms {
        let mean = direction.iter().sum::<f64>() / d_model as f64;
        direction.iter_mut().for_each(|x| *x -= mean);
    }
    for (x, w) in direction.iter_mut().zip(&last) {
        *x *= f64::from(*w);
    }
    head.chunks_exact(d_model)
        .map(|row| {
            row.iter()
                .zip(&direction)
                .map(|(w, x)| f64::from(*w) * x)
                .sum()
        })
        .collect()
}

#[test]
fn tokens_are_the_unembedding_times_the_weighted_down_column() {
    let mut folders = vec![larql_testkit::atlas().to_owned()];
    folders.extend(
        larql_testkit::FAMILIES
            .iter()
            .map(|name| larql_testkit::parity_fixture(name)),
    );
    let mut session = session();
    for folder in folders {
        session.open(&folder).unwrap();
        let (db, runtime) = session.database_and_runtime().unwrap();
        let layer = db.spec().n_layers() - 1;
        let end = u32::try_from(db.spec().n_features(layer).unwrap()).unwrap() - 1;
        // Out of order, with neighbors in a block and a repetition.
        let features = [end, 3, 4, end / 2, 3];
        let got = feature_tokens(db, runtime, layer, &features, 4, &mut |_| {}).unwrap();
        for (feature, tokens) in features.iter().zip(&got) {
            let mut logits: Vec<(usize, f64)> = written(db, layer, *feature as usize)
                .into_iter()
                .enumerate()
                .collect();
            logits.sort_by(|a, b| b.1.total_cmp(&a.1));
            assert_eq!(tokens.len(), 4);
            for ((id, score), (want_id, want)) in tokens.iter().zip(&logits) {
                assert_eq!(
                    *id as usize,
                    *want_id,
                    "{}: feature {feature}",
                    folder.display()
                );
                assert!(
                    (f64::from(*score) - want).abs() < 1e-4 * want.abs().max(1e-2),
                    "{score} {want}"
                );
            }
        }
        assert_eq!(got[1], got[4]);
        assert_ne!(got[0], got[1]);
    }
}

#[test]
fn every_family_lists_layers_norms_and_facts_without_a_tokenizer() {
    let mut session = session();
    for family in larql_testkit::FAMILIES {
        session
            .open(&larql_testkit::parity_fixture(family))
            .unwrap();
        let n_layers = session.database().unwrap().spec().n_layers();
        assert_eq!(
            run(&mut session, "SHOW LAYERS").unwrap().rows.len(),
            n_layers,
            "{family}"
        );
        let stats = run(&mut session, "STATS").unwrap();
        assert!(
            stats.rows.contains(&vec!["tokenizer".into(), Cell::Null]),
            "{family}"
        );
        assert_eq!(
            stats
                .notes
                .iter()
                .filter(|note| note.contains("no tokenizer"))
                .count(),
            1,
            "{family}"
        );
        let text = "SELECT layer, feature, gate_norm, up_norm, down_norm, expert FROM FEATURES ORDER BY down_norm DESC LIMIT 3";
        let rows = run(&mut session, text).unwrap().rows;
        let spec = session.database().unwrap().spec();
        for row in &rows {
            let Cell::Integer(layer) = row[0] else {
                panic!("{family}: {row:?}")
            };
            let ffn = &spec.layers[usize::try_from(layer).unwrap()].ffn;
            let has_no_expert = ffn.parts().all(|(part, _)| part == FfnPart::Dense);
            for (column, may_be_null) in [false, false, !ffn.is_gated(), false, false]
                .into_iter()
                .enumerate()
            {
                assert_eq!(row[column] == Cell::Null, may_be_null, "{family}: {row:?}");
            }
            assert!(row[5] == Cell::Null || !has_no_expert, "{family}: {row:?}");
        }
        let listed = run(&mut session, "SHOW FEATURES 0 LIMIT 3").unwrap();
        for row in &listed.rows {
            assert_eq!((&row[8], &row[10]), (&Cell::Null, &Cell::Null), "{family}");
            assert!(matches!(row[9], Cell::Real(_)), "{family}: {row:?}");
        }
        assert_eq!(listed.rows.len(), 3, "{family}");
        let about_texts = |note: &&String| note.starts_with("tokens have no text");
        assert_eq!(
            listed.notes.iter().filter(about_texts).count(),
            1,
            "{family}"
        );
        for about_tokens in [
            "SHOW FEATURES 0 WHERE token LIKE \"a%\"",
            "SELECT feature FROM FEATURES WHERE layer = 0 ORDER BY token",
        ] {
            let Err(DbError::Model(_)) = run(&mut session, about_tokens) else {
                panic!("{family}: {about_tokens} without a tokenizer");
            };
        }
        let text = "SELECT feature FROM FEATURES WHERE layer = 0 ORDER BY token_score LIMIT 2";
        assert_eq!(
            run(&mut session, text)
                .unwrap()
                .notes
                .iter()
                .filter(about_texts)
                .count(),
            0
        );
    }
}

/// The values of some rows of `STATS`.
fn facts(session: &mut larql_db::Session, names: &[&str]) -> Vec<String> {
    let stats = run(session, "STATS").unwrap();
    let value = |name: &&str| {
        let mut rows = stats.rows.iter();
        let row = rows.find(|row| row[0] == Cell::from(*name));
        row.map_or("none".to_owned(), |row| match &row[1] {
            Cell::Null => "NULL".to_owned(),
            Cell::Integer(n) => n.to_string(),
            Cell::Real(x) => x.to_string(),
            Cell::Text(text) => text.clone(),
        })
    };
    names.iter().map(value).collect()
}

#[test]
fn layers_say_what_mixes_positions_and_which_ffns_are_mixtures() {
    let heads = [
        "attention",
        "heads",
        "kv_heads",
        "key_heads",
        "value_heads",
        "d_head",
        "d_value",
        "q_rank",
        "kv_rank",
    ];
    let experts = [
        "d_mlp",
        "dense_layers",
        "experts",
        "experts_per_token",
        "d_expert",
        "d_shared",
    ];
    let mut session = session();
    for (family, of_heads, of_experts, of_layers) in [
        (
            "deepseek-v2",
            ["latent", "4", "4", "none", "none", "24", "20", "none", "32"],
            ["104", "1", "8", "2", "48", "48"],
            [
                "0 | latent | 4 | 4 | 24 | 20 | 32 | 104 | dense | NULL | NULL | NULL | NULL | silu, gated",
                "1 | latent | 4 | 4 | 24 | 20 | 32 | 432 | mixture | 8 | 2 | 48 | 48 | silu, gated",
            ],
        ),
        (
            "kimi-linear",
            [
                "kda in 2, latent in 2",
                "4, 5",
                "4, 5",
                "none",
                "none",
                "12, 24",
                "12, 20",
                "none",
                "32",
            ],
            ["104", "1", "6", "2", "48", "48"],
            [
                "0 | kda | 5 | 5 | 12 | 12 | NULL | 104 | dense | NULL | NULL | NULL | NULL | silu, gated",
                "1 | latent | 4 | 4 | 24 | 20 | 32 | 336 | mixture | 6 | 2 | 48 | 48 | silu, gated",
            ],
        ),
        (
            "qwen3-next",
            [
                "gated delta in 2, full in 2",
                "4",
                "2",
                "2",
                "4",
                "12, 24",
                "20, 24",
                "none",
                "none",
            ],
            ["NULL", "0", "6", "2", "48", "40"],
            [
                "0 | gated delta | NULL | NULL | 2 | 4 | 12 | 20 | 328 | mixture | 6 | 2 | 48 | 40 | silu, gated",
                "1 | full | 4 | 2 | NULL | NULL | 24 | 24 | 328 | mixture | 6 | 2 | 48 | 40 | silu, gated",
            ],
        ),
        (
            "gemma4-moe",
            [
                "window 9 in 2, full in 2",
                "4",
                "1, 2",
                "none",
                "none",
                "24, 32",
                "24, 32",
                "none",
                "none",
            ],
            ["104", "0", "6", "2", "48", "NULL"],
            [
                "0 | window 9 | 4 | 2 | 24 | 24 | 392 | mixture beside dense | 6 | 2 | 48 | NULL | gelu_tanh, gated",
                "1 | window 9 | 4 | 2 | 24 | 24 | 392 | mixture beside dense | 6 | 2 | 48 | NULL | gelu_tanh, gated",
            ],
        ),
        (
            "phi",
            ["full", "4", "4", "none", "none", "24", "24", "none", "none"],
            ["104", "none", "none", "none", "none", "none"],
            ["", ""],
        ),
    ] {
        session
            .open(&larql_testkit::parity_fixture(family))
            .unwrap();
        assert_eq!(facts(&mut session, &heads), of_heads, "{family}");
        assert_eq!(facts(&mut session, &experts), of_experts, "{family}");
        let rows = lines(&run(&mut session, "SHOW LAYERS 0-1").unwrap());
        for (row, start) in rows[1..].iter().zip(of_layers) {
            assert!(row.starts_with(start), "{family}: {row}");
        }
        // One number is a range of one layer.
        assert_eq!(
            lines(&run(&mut session, "SHOW LAYERS 1").unwrap())[1],
            rows[2]
        );
    }
    session
        .open(&larql_testkit::parity_fixture("deepseek-v3"))
        .unwrap();
    let of_groups = facts(&mut session, &["q_rank", "expert_groups", "groups_kept"]);
    assert_eq!(of_groups, ["40", "4", "2"]);
    let layers = run(&mut session, "SHOW LAYERS").unwrap();
    for name in ["q_rank", "kv_rank", "expert_groups", "groups_kept"] {
        assert!(layers.columns.iter().any(|column| column == name), "{name}");
    }
}

#[test]
fn norms_are_those_of_rows_and_columns() {
    let mut session = atlas_session();
    let (db, runtime) = session.database_and_runtime().unwrap();
    let norm = |values: &mut dyn Iterator<Item = f32>| {
        values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt()
    };
    let close =
        |got: f32, want: f64| assert!((f64::from(got) - want).abs() < 1e-5 * want, "{got} {want}");
    let (gate, cols) = matrix(db, of_layer(LayerTensor::Gate));
    let (up, _) = matrix(db, of_layer(LayerTensor::Up));
    let (down, d_mlp) = matrix(db, of_layer(LayerTensor::Down));
    let gates = gate_norms(db, runtime, LAYER).unwrap().unwrap();
    let ups = up_norms(db, runtime, LAYER).unwrap();
    let downs = down_norms(db, runtime, LAYER).unwrap();
    assert_eq!((gates.len(), ups.len(), downs.len()), (d_mlp, d_mlp, d_mlp));
    for feature in [0, 63, 64, 255, 256, 767] {
        close(
            gates[feature],
            norm(&mut gate[feature * cols..][..cols].iter().copied()),
        );
        close(
            ups[feature],
            norm(&mut up[feature * cols..][..cols].iter().copied()),
        );
        close(
            downs[feature],
            norm(&mut down.iter().skip(feature).step_by(d_mlp).copied()),
        );
    }
}

#[test]
fn the_vector_of_a_token_is_its_embedding_as_the_ffn_norm_passes_it_on() {
    let mut session = atlas_session();
    let (db, runtime) = session.database_and_runtime().unwrap();
    let (embedding, d_model) = matrix(db, TensorRole::TokenEmbedding);
    let (weight, _) = matrix(db, of_layer(LayerTensor::FfnNorm));
    let (gate, _) = matrix(db, of_layer(LayerTensor::Gate));
    let token = 1234;
    let vector = token_vector(db, runtime, LAYER, token).unwrap();
    let row: Vec<f64> = embedding[token as usize * d_model..][..d_model]
        .iter()
        .map(|x| f64::from(*x) * f64::from(db.spec().embedding.multiplier))
        .collect();
    let rms = (row.iter().map(|x| x * x).sum::<f64>() / d_model as f64 + 1e-6).sqrt();
    for (got, (x, w)) in vector.iter().zip(row.iter().zip(&weight)) {
        assert!((f64::from(*got) - x / rms * f64::from(*w)).abs() < 1e-4);
    }
    let dots = gate_dots(db, runtime, LAYER, &vector).unwrap();
    let want: f64 = gate[700 * d_model..][..d_model]
        .iter()
        .zip(&vector)
        .map(|(g, x)| f64::from(*g) * f64::from(*x))
        .sum();
    assert!(
        (f64::from(dots[700]) - want).abs() < 1e-3,
        "{} {want}",
        dots[700]
    );
}

#[test]
fn an_interrupt_ends_the_statement_and_the_next_one_runs() {
    let mut session = atlas_session();
    let interrupt = session
        .database_and_runtime()
        .unwrap()
        .1
        .interrupt()
        .clone();
    let long = "SELECT * FROM FEATURES WHERE token = \"Paris\"";
    let statement = larql_lql::parse(long).unwrap().remove(0);
    let mut n_reports = 0;
    let error = session.execute(&statement, &mut |_| {
        n_reports += 1;
        interrupt.raise();
    });
    assert!(
        matches!(error, Err(DbError::Engine(EngineError::Interrupted))),
        "{error:?}"
    );
    assert_eq!(n_reports, 1);
    interrupt.clear();
    assert_eq!(
        run(&mut session, "SHOW FEATURES 0 LIMIT 2")
            .unwrap()
            .rows
            .len(),
        2
    );
}

#[test]
fn a_vindex_keeps_tokens_and_answers_the_same_from_them() {
    let (_folder, path) = vindex(Level::All);
    let mut session = session();
    session.open(&path).unwrap();
    let text = "SELECT * FROM FEATURES WHERE layer = 1 AND token LIKE \"p%\" ORDER BY token_score DESC LIMIT 7";
    let first = lines(&run(&mut session, text).unwrap());
    assert_eq!(
        session
            .database()
            .unwrap()
            .vindex()
            .unwrap()
            .features()
            .unwrap()
            .count()
            .unwrap(),
        768
    );
    assert_eq!(lines(&run(&mut session, text).unwrap()), first);
    let mut plain = atlas_session();
    assert_eq!(
        lines(&run(&mut plain, text).unwrap()),
        first,
        "the checkpoint says the same"
    );
    assert_eq!(first.len(), 9, "{first:?}");
}

#[test]
fn a_relation_lasts_with_the_vindex_and_no_other_model_sees_it() {
    let (_folder, path) = vindex(Level::All);
    let create =
        "CREATE RELATION ore TEMPLATES (\"{e} is found in\") ANSWERS (\"rock\") TYPE \"thing\"";
    let mut first = session();
    first.open(&path).unwrap();
    assert_eq!(run(&mut first, create).unwrap().notes, Vec::<String>::new());
    first.open(larql_testkit::atlas()).unwrap();
    assert!(
        first.relations().find("ore").is_none(),
        "it belongs to the other model"
    );
    let mut second = session();
    second.open(&path).unwrap();
    let rows = run(&mut second, "SHOW RELATION ORE").unwrap();
    let texts: Vec<&Cell> = rows.rows.iter().map(|row| &row[2]).collect();
    assert_eq!(
        texts,
        [
            &Cell::from("thing"),
            &Cell::from("{e} is found in"),
            &Cell::from("rock")
        ]
    );
    run(&mut second, "DROP RELATION ore").unwrap();
    let mut third = session();
    third.open(&path).unwrap();
    assert!(third.relations().find("ore").is_none());
    assert!(matches!(
        run(&mut third, "DROP RELATION ore"),
        Err(DbError::Query { .. })
    ));
}

#[test]
fn a_model_that_cannot_be_opened_leaves_the_one_before() {
    let mut session = atlas_session();
    run(
        &mut session,
        "CREATE RELATION ore TEMPLATES (\"{e} is found in\")",
    )
    .unwrap();
    assert!(matches!(
        run(&mut session, "USE \"/no/such/model\""),
        Err(DbError::NotFound { .. })
    ));
    assert!(session.relations().find("ore").is_some());
    assert_eq!(run(&mut session, "SHOW LAYERS").unwrap().rows.len(), 4);
}

#[test]
fn rows_do_not_depend_on_threads_or_repetition() {
    let text = "SELECT * FROM FEATURES NEAREST TO \"France\" ORDER BY cosine DESC, token LIMIT 30";
    let mut two = atlas_session();
    let first = run(&mut two, text).unwrap();
    assert_eq!(run(&mut two, text).unwrap(), first);
    let mut one = larql_db::Session::new(larql_db::SessionOptions {
        n_threads: std::num::NonZeroUsize::MIN,
        profile: larql_engine::Profile::Fast,
        interrupt: larql_engine::Interrupt::default(),
        models_dir: None,
    });
    one.open(larql_testkit::atlas()).unwrap();
    assert_eq!(run(&mut one, text).unwrap(), first);
}

#[test]
fn the_longest_filter_that_parses_is_executed() {
    let mut session = atlas_session();
    let terms: Vec<String> = (0..10_000)
        .map(|n| format!("feature = {}", n % 700))
        .collect();
    let deep = format!("{}feature = 1{}", "NOT (".repeat(32), ")".repeat(32));
    let text = format!(
        "SELECT feature FROM FEATURES WHERE ({}) AND {deep} LIMIT 9",
        terms.join(" OR ")
    );
    let rows = run(&mut session, &text).unwrap();
    assert_eq!(rows.rows, vec![vec![Cell::Integer(1)]; 4]);
    let items: Vec<String> = (0..10_000).map(|n| n.to_string()).collect();
    let list = format!("feature IN ({})", items.join(", "));
    let text =
        format!("SELECT feature FROM FEATURES WHERE {list} AND {list} AND {list} AND {list}");
    let Err(DbError::Query { message, .. }) = run(&mut session, &text) else {
        panic!("it was executed")
    };
    assert_eq!(
        message,
        "WHERE has 40000 constants, at most 30000 are allowed"
    );
}

#[test]
fn a_vindex_without_attention_lists_features_and_refuses_to_run() {
    let (_folder, path) = vindex(Level::Browse);
    let mut session = session();
    session.open(&path).unwrap();
    let mut whole = atlas_session();
    for text in [
        "SELECT * FROM FEATURES WHERE layer = 2 AND token LIKE \"p%\" LIMIT 5",
        "SELECT * FROM FEATURES NEAREST TO \"France\" AT LAYER 1 LIMIT 5",
    ] {
        assert_eq!(
            lines(&run(&mut session, text).unwrap()),
            lines(&run(&mut whole, text).unwrap()),
            "{text}"
        );
    }
    let layers = run(&mut session, "SHOW LAYERS 1-1").unwrap();
    let q = layers.columns.iter().position(|name| name == "q").unwrap();
    assert_eq!(layers.rows[0][q], Cell::Null);
    assert!(
        run(&mut session, "STATS")
            .unwrap()
            .rows
            .contains(&vec!["level".into(), "browse".into()])
    );
    for text in [
        "INFER \"The capital\"",
        "WALK \"The\"",
        "DESCRIBE \"France\"",
        "SELECT * FROM EDGES WHERE entity = \"France\"",
    ] {
        let Err(DbError::Query { message, hint, .. }) = run(&mut session, text) else {
            panic!("{text}: it ran")
        };
        assert!(
            message.ends_with("needs level inference, this vindex has browse"),
            "{message}"
        );
        assert!(hint.unwrap().contains("--level inference"));
    }
}
