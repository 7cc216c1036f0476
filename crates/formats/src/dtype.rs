//! [`Dtype`]: the element types of both containers, with the sizes of their blocks.
//!
//! One table holds every fact. Types that nobody here decodes are listed as well, because
//! a file that holds them must still be sized, listed and copied.

use std::fmt;

/// How the values of a tensor are stored. `Qx`, `Iq`, `Tq` and `Mxfp4` are ggml block formats.
#[expect(missing_docs, reason = "the variants are the names of the formats")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    F64,
    F32,
    F16,
    Bf16,
    F8E4M3,
    F8E5M2,
    F8E8M0,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Bool,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Q8K,
    Iq1S,
    Iq1M,
    Iq2Xxs,
    Iq2Xs,
    Iq2S,
    Iq3Xxs,
    Iq3S,
    Iq4Nl,
    Iq4Xs,
    Tq1_0,
    Tq2_0,
    Mxfp4,
}

struct Facts {
    name: &'static str,
    block_len: u64,
    block_bytes: u64,
    ggml: Option<u32>,
    safetensors: Option<&'static str>,
}

/// A type that safetensors knows under the same name as we do, of one value per block.
const fn plain(name: &'static str, block_bytes: u64, ggml: Option<u32>) -> Facts {
    Facts {
        name,
        block_len: 1,
        block_bytes,
        ggml,
        safetensors: Some(name),
    }
}

const fn block(name: &'static str, block_len: u64, block_bytes: u64, ggml: u32) -> Facts {
    Facts {
        name,
        block_len,
        block_bytes,
        ggml: Some(ggml),
        safetensors: None,
    }
}

impl Dtype {
    /// Every type, in declaration order.
    pub const ALL: [Dtype; 40] = {
        use Dtype::*;
        [
            F64, F32, F16, Bf16, F8E4M3, F8E5M2, F8E8M0, I8, I16, I32, I64, U8, U16, U32, U64,
            Bool, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q2K, Q3K, Q4K, Q5K, Q6K, Q8K, Iq1S, Iq1M,
            Iq2Xxs, Iq2Xs, Iq2S, Iq3Xxs, Iq3S, Iq4Nl, Iq4Xs, Tq1_0, Tq2_0, Mxfp4,
        ]
    };

    /// Block sizes and type numbers are those of `ggml-common.h` and `ggml.h`.
    const fn facts(self) -> Facts {
        match self {
            Dtype::F64 => plain("F64", 8, Some(28)),
            Dtype::F32 => plain("F32", 4, Some(0)),
            Dtype::F16 => plain("F16", 2, Some(1)),
            Dtype::Bf16 => plain("BF16", 2, Some(30)),
            Dtype::F8E4M3 => plain("F8_E4M3", 1, None),
            Dtype::F8E5M2 => plain("F8_E5M2", 1, None),
            Dtype::F8E8M0 => plain("F8_E8M0", 1, None),
            Dtype::I8 => plain("I8", 1, Some(24)),
            Dtype::I16 => plain("I16", 2, Some(25)),
            Dtype::I32 => plain("I32", 4, Some(26)),
            Dtype::I64 => plain("I64", 8, Some(27)),
            Dtype::U8 => plain("U8", 1, None),
            Dtype::U16 => plain("U16", 2, None),
            Dtype::U32 => plain("U32", 4, None),
            Dtype::U64 => plain("U64", 8, None),
            Dtype::Bool => plain("BOOL", 1, None),
            Dtype::Q4_0 => block("Q4_0", 32, 18, 2),
            Dtype::Q4_1 => block("Q4_1", 32, 20, 3),
            Dtype::Q5_0 => block("Q5_0", 32, 22, 6),
            Dtype::Q5_1 => block("Q5_1", 32, 24, 7),
            Dtype::Q8_0 => block("Q8_0", 32, 34, 8),
            Dtype::Q8_1 => block("Q8_1", 32, 36, 9),
            Dtype::Q2K => block("Q2_K", 256, 84, 10),
            Dtype::Q3K => block("Q3_K", 256, 110, 11),
            Dtype::Q4K => block("Q4_K", 256, 144, 12),
            Dtype::Q5K => block("Q5_K", 256, 176, 13),
            Dtype::Q6K => block("Q6_K", 256, 210, 14),
            Dtype::Q8K => block("Q8_K", 256, 292, 15),
            Dtype::Iq1S => block("IQ1_S", 256, 50, 19),
            Dtype::Iq1M => block("IQ1_M", 256, 56, 29),
            Dtype::Iq2Xxs => block("IQ2_XXS", 256, 66, 16),
            Dtype::Iq2Xs => block("IQ2_XS", 256, 74, 17),
            Dtype::Iq2S => block("IQ2_S", 256, 82, 22),
            Dtype::Iq3Xxs => block("IQ3_XXS", 256, 98, 18),
            Dtype::Iq3S => block("IQ3_S", 256, 110, 21),
            Dtype::Iq4Nl => block("IQ4_NL", 32, 18, 20),
            Dtype::Iq4Xs => block("IQ4_XS", 256, 136, 23),
            Dtype::Tq1_0 => block("TQ1_0", 256, 54, 34),
            Dtype::Tq2_0 => block("TQ2_0", 256, 66, 35),
            Dtype::Mxfp4 => block("MXFP4", 32, 17, 39),
        }
    }

    /// The usual upper-case name, such as `BF16` or `Q4_K`.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// The type called `name`, as [`Dtype::name`] spells it.
    pub fn from_name(name: &str) -> Option<Dtype> {
        Dtype::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Values per block; 1 for plain types.
    pub const fn block_len(self) -> u64 {
        self.facts().block_len
    }

    /// Bytes per block; the size of a value for plain types.
    pub const fn block_bytes(self) -> u64 {
        self.facts().block_bytes
    }

    /// The type with this ggml number, if we can size it.
    pub fn from_ggml(id: u32) -> Option<Dtype> {
        Dtype::ALL.into_iter().find(|d| d.to_ggml() == Some(id))
    }

    /// The ggml number; `None` if GGUF cannot hold the type.
    pub const fn to_ggml(self) -> Option<u32> {
        self.facts().ggml
    }

    /// The type that safetensors calls `name`.
    pub fn from_safetensors(name: &str) -> Option<Dtype> {
        Dtype::ALL
            .into_iter()
            .find(|d| d.to_safetensors() == Some(name))
    }

    /// The safetensors name; `None` for ggml block formats.
    pub const fn to_safetensors(self) -> Option<&'static str> {
        self.facts().safetensors
    }

    /// Bytes of a tensor of `shape` (row-major, outermost first; no dimensions is a scalar).
    ///
    /// `None` if the product overflows, or if the last dimension is not a multiple of the block:
    /// a block never spans two rows.
    pub fn n_bytes(self, shape: &[u64]) -> Option<u64> {
        let row_len = shape.last().copied().unwrap_or(1);
        if row_len % self.block_len() != 0 {
            return None;
        }
        let row_bytes = (row_len / self.block_len()).checked_mul(self.block_bytes())?;
        let outer = shape.split_last().map_or(&[][..], |(_, outer)| outer);
        // The count of values is checked as well: readers multiply it by other widths.
        outer.iter().try_fold(row_len, |n, d| n.checked_mul(*d))?;
        outer.iter().try_fold(row_bytes, |n, d| n.checked_mul(*d))
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_ggmls() {
        // 2 + 2 scales, 12 packed scales and mins, 128 nibbles.
        assert_eq!(Dtype::Q4K.n_bytes(&[3, 512]), Some(3 * 2 * 144));
        assert_eq!(Dtype::Q6K.n_bytes(&[2, 5, 256]), Some(10 * 210));
        assert_eq!(Dtype::Mxfp4.n_bytes(&[7, 96]), Some(7 * 3 * 17));
        assert_eq!(Dtype::Bf16.n_bytes(&[]), Some(2));
        assert_eq!(Dtype::F32.n_bytes(&[0, 4]), Some(0));
        assert_eq!(Dtype::F64.n_bytes(&[3, 5]), Some(120));
    }

    #[test]
    fn partial_blocks_and_overflow_have_no_size() {
        assert_eq!(Dtype::Q4K.n_bytes(&[256, 255]), None);
        assert_eq!(Dtype::Q8_0.n_bytes(&[]), None);
        assert_eq!(Dtype::F32.n_bytes(&[1 << 62]), None);
        assert_eq!(Dtype::U8.n_bytes(&[1 << 32, 1 << 32]), None);
        // 2^64 values fit 2^63 bytes: refused for the count.
        assert_eq!(Dtype::Iq1S.n_bytes(&[1 << 32, 1 << 32]), None);
    }

    #[test]
    fn the_maps_to_other_names_invert() {
        for (i, d) in Dtype::ALL.into_iter().enumerate() {
            assert_eq!(d as usize, i, "{d} is out of order in ALL");
            assert_eq!(Dtype::from_name(d.name()), Some(d));
            if let Some(id) = d.to_ggml() {
                assert_eq!(Dtype::from_ggml(id), Some(d));
            }
            if let Some(name) = d.to_safetensors() {
                assert_eq!(Dtype::from_safetensors(name), Some(d));
            }
        }
        for retired in [4, 5, 31, 32, 33, 36, 37, 38, 99] {
            assert_eq!(Dtype::from_ggml(retired), None);
        }
    }
}
