//! Kernels for x86-64 with AVX-512 (F, BW, VL) and its VNNI: those of pairs of tiles, sixteen rows in a register.
//!
//! What has no pair of tiles is that of AVX2, which every such CPU has.  Results have the scalar bits, as there.
//!
//! The functions in the table are safe to call only on a CPU with these features; [`kernels`] is the one way to the table and
//! checks that.

mod floats;
mod registers;
mod tiles;
mod values;
mod weights;

use super::{
    FloatDots, IntegerTable, Isa, Kernels, PlainDots, StoredWeighs, TileDots, Weighs, avx2,
};

/// The table, if this CPU has the features.
pub(super) fn kernels() -> Option<&'static Kernels> {
    let has_features = avx2::kernels().is_some()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni");
    has_features.then_some(&KERNELS)
}

/// The dots of one format: pairs of tiles from here, one tile from `$avx2`.
macro_rules! with_pairs {
    ($avx2:expr, $dots:ident) => {
        TileDots {
            abreast: tiles::$dots::<false, 1>,
            abreast_two: tiles::$dots::<false, 2>,
            abreast_four: tiles::$dots::<false, 4>,
            pair: tiles::$dots::<true, 4>,
            pair_eight: Some(tiles::$dots::<true, 8>),
            ..$avx2.$dots
        }
    };
}

static KERNELS: Kernels = {
    let one = &avx2::KERNELS;
    Kernels {
        isa: Isa::Avx512,
        integer: IntegerTable {
            q4_0: with_pairs!(one.integer, q4_0),
            q4_1: with_pairs!(one.integer, q4_1),
            q5_0: with_pairs!(one.integer, q5_0),
            q5_1: with_pairs!(one.integer, q5_1),
            q8_0: with_pairs!(one.integer, q8_0),
            iq4_nl: with_pairs!(one.integer, iq4_nl),
            mxfp4: with_pairs!(one.integer, mxfp4),
            q4_k: with_pairs!(one.integer, q4_k),
            q5_k: with_pairs!(one.integer, q5_k),
            q6_k: with_pairs!(one.integer, q6_k),
        },
        floats: FloatDots {
            pair_one: floats::floats,
            pair_two: floats::floats,
            pair: floats::floats,
            pair_eight: Some(floats::floats),
            ..one.floats
        },
        // One position is left to AVX2, which reads memory as fast and BF16 faster.
        plain: PlainDots {
            abreast_two: floats::plain_dots,
            abreast_four: floats::plain_dots,
            ..one.plain
        },
        weigh: Weighs {
            one: values::weigh,
            two: values::weigh,
            four: values::weigh,
        },
        weigh_stored: StoredWeighs {
            one: values::weigh_stored,
            two: values::weigh_stored,
            four: values::weigh_stored,
        },
        ..*one
    }
};
