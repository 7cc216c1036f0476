//! A model of tiles that were made before: the same bits, and refused by name when the tiles are not the checkpoint's.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::num::NonZeroUsize;

use larql_engine::{
    EngineError, Interrupt, Model, PackedMatrices, PackedMatrix, Profile, Runtime, SequenceInput,
    SequenceState, TilePlace, WantedLogits, forward, write_tiles,
};
use larql_formats::Bytes;
use larql_kernels::{Format, Team};
use larql_models::{Checkpoint, LayerTensor, TensorRole};
use larql_testkit::{FAMILIES, parity_fixture};

fn checkpoint(name: &str) -> Checkpoint {
    Checkpoint::open(&parity_fixture(name)).unwrap()
}

/// The tiles of every tensor of two dimensions or more.
fn packed(checkpoint: &Checkpoint) -> PackedMatrices {
    let mut team = Team::new(NonZeroUsize::new(2).unwrap());
    let tensors = checkpoint
        .roles()
        .into_iter()
        .map(|role| checkpoint.tensor(role).unwrap());
    tensors
        .filter(|tensor| tensor.shape.len() > 1)
        .map(|tensor| {
            let mut tiles = Vec::new();
            write_tiles::<EngineError>(&mut team, &tensor, &mut |piece| {
                tiles.extend_from_slice(piece);
                Ok(())
            })
            .unwrap();
            let packed = PackedMatrix {
                format: tensor.format,
                rows: tensor.n_rows(),
                cols: tensor.cols(),
                tiles: Bytes::from_vec(tiles),
            };
            (tensor.role, packed)
        })
        .collect()
}

fn bits(model: &Model) -> Vec<u32> {
    let tokens: Vec<u32> = (0..13).map(|i| 3 + i * 37 % 290).collect();
    let n_threads = NonZeroUsize::new(2).unwrap();
    let mut runtime = Runtime::new(n_threads, Profile::Fast, Interrupt::default());
    let mut states = [SequenceState::new(model.spec())];
    let input = SequenceInput {
        tokens: &tokens,
        logits: WantedLogits::All,
    };
    let logits = forward(model, &mut runtime, &[input], &mut states, None).unwrap();
    let rows = logits.rows();
    rows.flat_map(|(_, row)| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
        .collect()
}

#[test]
fn packed_tiles_give_the_bits_of_a_load() {
    for name in FAMILIES {
        let checkpoint = checkpoint(name);
        let loaded = Model::load(&checkpoint).unwrap();
        let model = Model::load_packed(&checkpoint, &packed(&checkpoint)).unwrap();
        assert_eq!(
            (loaded.tile_place(), model.tile_place()),
            (TilePlace::Memory, TilePlace::Pack)
        );
        assert!(bits(&model) == bits(&loaded), "{name}: other bits");
    }
}

#[test]
fn tiles_that_do_not_fit_are_named() {
    let checkpoint = checkpoint("llama");
    let good = packed(&checkpoint);
    let role = TensorRole::Layer(1, LayerTensor::Q);
    let tensor = checkpoint.tensor(role).unwrap();
    let (rows, cols, n) = (tensor.n_rows(), tensor.cols(), good[&role].tiles.len());
    let has = format!("BF16 {:?}", tensor.shape);
    let refused = |change: &dyn Fn(&mut PackedMatrices)| {
        let mut matrices = good.clone();
        change(&mut matrices);
        Model::load_packed(&checkpoint, &matrices)
            .unwrap_err()
            .to_string()
    };
    let changed = |change: &dyn Fn(&mut PackedMatrix)| {
        refused(&|matrices| change(matrices.get_mut(&role).unwrap()))
    };
    let of = |expected: &str, got: &str| {
        format!("packed tiles of `layer 1 attn.q`: expected {expected}, got {got}")
    };
    let missing = refused(&|matrices| {
        matrices.remove(&role);
    });
    assert_eq!(missing, of(&has, "nothing"));
    assert_eq!(
        changed(&|matrix| matrix.format = Format::F16),
        of(&has, &format!("F16 [{rows}, {cols}]"))
    );
    assert_eq!(
        changed(&|matrix| (matrix.rows, matrix.cols) = (rows / 2, cols * 2)),
        of(&has, &format!("BF16 [{}, {}]", rows / 2, cols * 2))
    );
    assert_eq!(
        changed(&|matrix| matrix.tiles = matrix.tiles.slice(1..n)),
        of(&format!("{n} bytes of tiles"), &format!("{} bytes", n - 1))
    );
}
