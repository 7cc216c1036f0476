//! Instruction sets and the table of kernels that each of them provides.
//!
//! A set is chosen once, at run time, as a `&'static Kernels` of function pointers; callers check
//! shapes in the safe methods of [`Kernels`], so a pointer in the table may rely on them.

#[cfg(target_arch = "x86_64")]
mod avx2;
pub(crate) mod scalar;

use std::sync::OnceLock;

use crate::activations::{Blocks32, Blocks256};
use crate::format::Format;

/// An instruction set that has a table of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Portable code; the specification of all others.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
}

impl Isa {
    /// The sets that this CPU can run, the slowest first.
    pub fn available() -> Vec<Self> {
        [Self::Scalar, Self::Avx2]
            .into_iter()
            .filter(|&isa| Kernels::for_isa(isa).is_some())
            .collect()
    }

    /// A short lower-case name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
        }
    }
}

type Decode = fn(Format, &[u8], &mut [f32]);
type Quantize32 = fn(&[f32], &mut [i8], &mut [f32], &mut [f32]);
type Quantize256 = fn(&[f32], &mut [i8], &mut [f32], &mut [i16], &mut [i16]);
type Scale = fn(&[f32], Option<&[f32]>, f32, &mut [f32]);
type LayerNorm = fn(&[f32], &[f32], Option<&[f32]>, f32, &mut [f32]);

/// Row dots of one format with activations in blocks of 32, for one and for four positions.
///
/// The arguments are some rows, one after another, the positions, and one entry of sums per row.
#[derive(Clone, Copy)]
pub(crate) struct Dots32 {
    pub(crate) one: fn(&[u8], [Blocks32<'_>; 1], &mut [[f32; 1]]),
    pub(crate) four: fn(&[u8], [Blocks32<'_>; 4], &mut [[f32; 4]]),
}

/// As [`Dots32`] with activations in blocks of 256.
#[derive(Clone, Copy)]
pub(crate) struct Dots256 {
    pub(crate) one: fn(&[u8], [Blocks256<'_>; 1], &mut [[f32; 1]]),
    pub(crate) four: fn(&[u8], [Blocks256<'_>; 4], &mut [[f32; 4]]),
}

/// The bytes of each row with its place in `out`; there is at least one row and it is not empty.
#[inline(always)]
pub(crate) fn rows_with_sums<'a, const N: usize>(
    rows: &'a [u8],
    out: &'a mut [[f32; N]],
) -> impl Iterator<Item = (&'a [u8], &'a mut [f32; N])> {
    rows.chunks_exact(rows.len() / out.len()).zip(out)
}

/// The integer row dots, by format.
pub(crate) struct IntegerTable {
    pub(crate) q4_0: Dots32,
    pub(crate) q4_1: Dots32,
    pub(crate) q5_0: Dots32,
    pub(crate) q5_1: Dots32,
    pub(crate) q8_0: Dots32,
    pub(crate) iq4_nl: Dots32,
    pub(crate) mxfp4: Dots32,
    pub(crate) q4_k: Dots256,
    pub(crate) q5_k: Dots256,
    pub(crate) q6_k: Dots256,
}

/// Fills an [`IntegerTable`] from a module that has one generic function per format.
macro_rules! integer_table {
    ($module:ident) => {
        $crate::arch::IntegerTable {
            q4_0: Dots32 {
                one: $module::q4_0,
                four: $module::q4_0,
            },
            q4_1: Dots32 {
                one: $module::q4_1,
                four: $module::q4_1,
            },
            q5_0: Dots32 {
                one: $module::q5_0,
                four: $module::q5_0,
            },
            q5_1: Dots32 {
                one: $module::q5_1,
                four: $module::q5_1,
            },
            q8_0: Dots32 {
                one: $module::q8_0,
                four: $module::q8_0,
            },
            iq4_nl: Dots32 {
                one: $module::iq4_nl,
                four: $module::iq4_nl,
            },
            mxfp4: Dots32 {
                one: $module::mxfp4,
                four: $module::mxfp4,
            },
            q4_k: Dots256 {
                one: $module::q4_k,
                four: $module::q4_k,
            },
            q5_k: Dots256 {
                one: $module::q5_k,
                four: $module::q5_k,
            },
            q6_k: Dots256 {
                one: $module::q6_k,
                four: $module::q6_k,
            },
        }
    };
}
use integer_table;

/// The integer row dots of one format.
#[derive(Clone, Copy)]
pub(crate) enum IntegerDots {
    Per32(Dots32),
    Per256(Dots256),
}

/// The kernels of one instruction set.
///
/// All sets compute the same bits; they differ in speed.
pub struct Kernels {
    isa: Isa,
    decode: Decode,
    dot: fn(&[f32], &[f32]) -> f32,
    dot4: fn(&[f32], [&[f32]; 4]) -> [f32; 4],
    axpy: fn(f32, &[f32], &mut [f32]),
    exp_in_place: fn(&mut [f32]),
    softmax_in_place: fn(&mut [f32]),
    silu_mul: fn(&mut [f32], &[f32]),
    gelu_tanh_mul: fn(&mut [f32], &[f32]),
    scale: Scale,
    layer_norm: LayerNorm,
    quantize_32: Quantize32,
    quantize_256: Quantize256,
    integer: IntegerTable,
}

impl Kernels {
    /// The fastest table that this CPU can run.
    pub fn detect() -> &'static Self {
        static DETECTED: OnceLock<&'static Kernels> = OnceLock::new();
        DETECTED.get_or_init(|| Self::for_isa(Isa::Avx2).unwrap_or(&scalar::KERNELS))
    }

    /// The table of `isa`, or `None` when this CPU cannot run it.
    pub fn for_isa(isa: Isa) -> Option<&'static Self> {
        match isa {
            Isa::Scalar => Some(&scalar::KERNELS),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::kernels(),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 => None,
        }
    }

    /// The instruction set of this table.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Decodes whole blocks of `format` to `f32`, exactly as ggml does.
    ///
    /// # Panics
    ///
    /// If `out.len()` is not a whole number of blocks or `bytes` is not exactly those blocks.
    pub fn decode(&self, format: Format, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(
            format.row_bytes(out.len()),
            Some(bytes.len()),
            "bytes of {} {format} weights",
            out.len()
        );
        (self.decode)(format, bytes, out);
    }

    /// `sum_i a[i] * b[i]` in f32, in the lane order of this crate: the error is at most
    /// `n * eps * sum |a[i] b[i]|`, and the bits depend on nothing but the two vectors.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn dot_f32(&self, a: &[f32], b: &[f32]) -> f32 {
        assert_eq!(a.len(), b.len(), "lengths of a dot");
        (self.dot)(a, b)
    }

    /// Four dots with one shared operand; each has the bits of [`Self::dot_f32`].
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn dot4_f32(&self, w: &[f32], x: [&[f32]; 4]) -> [f32; 4] {
        assert!(x.iter().all(|x| x.len() == w.len()), "lengths of four dots");
        (self.dot4)(w, x)
    }

    /// `y[i] += alpha * x[i]` with one rounding each.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn axpy(&self, alpha: f32, x: &[f32], y: &mut [f32]) {
        assert_eq!(x.len(), y.len(), "lengths of axpy");
        (self.axpy)(alpha, x, y);
    }

    /// `x[i] = e^x[i]`, within 2 ulp.
    pub fn exp_in_place(&self, x: &mut [f32]) {
        (self.exp_in_place)(x);
    }

    /// `x[i] = e^(x[i] - max x) / sum_j e^(x[j] - max x)`.
    ///
    /// An entry of negative infinity becomes 0; when all are, or one is NaN, every entry is NaN.
    pub fn softmax_in_place(&self, x: &mut [f32]) {
        (self.softmax_in_place)(x);
    }

    /// `gate[i] = silu(gate[i]) * up[i]` with `silu(g) = g / (1 + e^-g)`.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn silu_mul(&self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "lengths of gate and up");
        (self.silu_mul)(gate, up);
    }

    /// `gate[i] = gelu(gate[i]) * up[i]` with the tanh form of GELU.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn gelu_tanh_mul(&self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "lengths of gate and up");
        (self.gelu_tanh_mul)(gate, up);
    }

    /// `out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]`; the squares are summed as
    /// [`Self::dot_f32`] sums them.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn rms_norm(&self, x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "lengths of an RMS norm");
        assert!(
            weight.is_none_or(|w| w.len() == x.len()),
            "length of norm weight"
        );
        let mean = (self.dot)(x, x) / x.len() as f32;
        (self.scale)(x, weight, 1.0 / (mean + eps).sqrt(), out);
    }

    /// `out[i] = (x[i] - mean) / sqrt(var + eps) * weight[i] + bias[i]`, with the biased variance.
    ///
    /// # Panics
    ///
    /// If the lengths differ.
    pub fn layer_norm(
        &self,
        x: &[f32],
        weight: &[f32],
        bias: Option<&[f32]>,
        eps: f32,
        out: &mut [f32],
    ) {
        assert_eq!(x.len(), out.len(), "lengths of a layer norm");
        assert_eq!(x.len(), weight.len(), "length of norm weight");
        assert!(
            bias.is_none_or(|b| b.len() == x.len()),
            "length of norm bias"
        );
        (self.layer_norm)(x, weight, bias, eps, out);
    }

    /// The integer row dots of `format`, if it has them.
    pub(crate) fn integer_dots(&self, format: Format) -> Option<IntegerDots> {
        let table = &self.integer;
        match format {
            Format::Q4_0 => Some(IntegerDots::Per32(table.q4_0)),
            Format::Q4_1 => Some(IntegerDots::Per32(table.q4_1)),
            Format::Q5_0 => Some(IntegerDots::Per32(table.q5_0)),
            Format::Q5_1 => Some(IntegerDots::Per32(table.q5_1)),
            Format::Q8_0 => Some(IntegerDots::Per32(table.q8_0)),
            Format::Iq4Nl => Some(IntegerDots::Per32(table.iq4_nl)),
            Format::Mxfp4 => Some(IntegerDots::Per32(table.mxfp4)),
            Format::Q4K => Some(IntegerDots::Per256(table.q4_k)),
            Format::Q5K => Some(IntegerDots::Per256(table.q5_k)),
            Format::Q6K => Some(IntegerDots::Per256(table.q6_k)),
            Format::F32
            | Format::F16
            | Format::Bf16
            | Format::Q2K
            | Format::Q3K
            | Format::Iq4Xs => None,
        }
    }

    /// Quantizes whole blocks of 32: values, scales, and scale times the sum of values.
    pub(crate) fn quantize_32(
        &self,
        x: &[f32],
        q: &mut [i8],
        scales: &mut [f32],
        sums: &mut [f32],
    ) {
        assert_eq!(x.len(), q.len());
        assert_eq!(x.len(), scales.len() * 32);
        assert_eq!(x.len(), sums.len() * 32);
        (self.quantize_32)(x, q, scales, sums);
    }

    /// Quantizes whole blocks of 256: values, scales, and sums of values per 16 and per 32.
    pub(crate) fn quantize_256(
        &self,
        x: &[f32],
        q: &mut [i8],
        scales: &mut [f32],
        sums16: &mut [i16],
        sums32: &mut [i16],
    ) {
        assert_eq!(x.len(), q.len());
        assert_eq!(x.len(), scales.len() * 256);
        assert_eq!(x.len(), sums16.len() * 16);
        assert_eq!(x.len(), sums32.len() * 32);
        (self.quantize_256)(x, q, scales, sums16, sums32);
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernels")
            .field("isa", &self.isa)
            .finish_non_exhaustive()
    }
}
