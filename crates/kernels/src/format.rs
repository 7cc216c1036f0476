//! The storage formats of a weight row: names, block sizes, row sizes.
//!
//! A row is a whole number of blocks; a block holds `block_len` weights in `block_bytes` bytes, laid
//! out as ggml lays them out.  What the bytes mean is in [`crate::decode`]; nothing here touches data.

/// Storage format of a row of weights, byte-compatible with ggml.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// IEEE single precision, little-endian.
    F32,
    /// IEEE half precision, little-endian.
    F16,
    /// The upper half of an IEEE single, little-endian.
    Bf16,
    /// 32 weights: f16 scale, 4-bit values with offset 8.
    Q4_0,
    /// 32 weights: f16 scale and minimum, 4-bit values.
    Q4_1,
    /// 32 weights: f16 scale, 5-bit values with offset 16.
    Q5_0,
    /// 32 weights: f16 scale and minimum, 5-bit values.
    Q5_1,
    /// 32 weights: f16 scale, 8-bit signed values.
    Q8_0,
    /// 256 weights: 2-bit values, 4-bit scales and minima per 16.
    Q2K,
    /// 256 weights: 3-bit signed values, 6-bit scales per 16.
    Q3K,
    /// 256 weights: 4-bit values, 6-bit scales and minima per 32.
    Q4K,
    /// 256 weights: 5-bit values, 6-bit scales and minima per 32.
    Q5K,
    /// 256 weights: 6-bit signed values, 8-bit scales per 16.
    Q6K,
    /// 32 weights: f16 scale, 4-bit indices into a fixed non-linear table.
    Iq4Nl,
    /// 256 weights: as `Iq4Nl` with 6-bit scales per 32.
    Iq4Xs,
    /// 32 weights: power-of-two scale, 4-bit floats (E2M1).
    Mxfp4,
}

impl Format {
    /// Every format, in declaration order.
    pub const ALL: &[Self] = &[
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
    ];

    /// The name ggml prints, for example `Q4_K`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Iq4Nl => "IQ4_NL",
            Self::Iq4Xs => "IQ4_XS",
            Self::Mxfp4 => "MXFP4",
        }
    }

    /// Weights in one block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0
            | Self::Q4_1
            | Self::Q5_0
            | Self::Q5_1
            | Self::Q8_0
            | Self::Iq4Nl
            | Self::Mxfp4 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::Iq4Xs => 256,
        }
    }

    /// Bytes in one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Iq4Xs => 136,
            Self::Mxfp4 => 17,
        }
    }

    /// Bytes of a row of `cols` weights; `None` when `cols` is not a whole number of blocks or the
    /// size overflows.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }
}

/// A value that is stored by itself, in a block of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plain {
    F32,
    F16,
    Bf16,
}

impl Format {
    /// The kind of value, where a block is one.
    #[inline]
    pub(crate) const fn plain(self) -> Option<Plain> {
        match self {
            Self::F32 => Some(Plain::F32),
            Self::F16 => Some(Plain::F16),
            Self::Bf16 => Some(Plain::Bf16),
            Self::Q4_0
            | Self::Q4_1
            | Self::Q5_0
            | Self::Q5_1
            | Self::Q8_0
            | Self::Q2K
            | Self::Q3K
            | Self::Q4K
            | Self::Q5K
            | Self::Q6K
            | Self::Iq4Nl
            | Self::Iq4Xs
            | Self::Mxfp4 => None,
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
