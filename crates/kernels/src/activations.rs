//! Activations made ready once for all the matrices that consume them.
//!
//! Holds a float copy and, for the integer kernels, an 8-bit form in blocks of 32.  Every
//! position has its own scales, so a position's result never depends on its neighbours.  Buffers
//! are kept between calls.

use crate::arch::Kernels;
use crate::format::Format;
use crate::team::Team;

/// How activations meet weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// Float activations; weights are decoded to f32 and accumulated in f32.
    Exact,
    /// 8-bit activations with a scale per 32, for the formats that have an integer kernel; as
    /// [`Arithmetic::Exact`] for the others and for a width that is not a whole number of blocks.
    Fast,
    /// As [`Arithmetic::Fast`], but Q8_0 weights meet 8-bit activations with a scale and a middle per 16: finer where a few
    /// large values stand among small ones, or where values have one sign.
    Asym16,
}

/// In which form activations meet the weights of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// f32, with weights decoded to f32.
    Floats,
    /// 8-bit blocks of 32 with a scale each.
    Blocks,
    /// 8-bit blocks of 16 with a scale and a middle each.
    Asymmetric,
}

impl Arithmetic {
    /// Every arithmetic, the most exact one first.
    pub const ALL: [Self; 3] = [Self::Exact, Self::Fast, Self::Asym16];

    /// The form in which this arithmetic meets rows of `cols` weights of `format`; there is one for every matrix.
    pub fn form(self, format: Format, cols: usize) -> Form {
        let on_integers =
            cols.is_multiple_of(32) && crate::arch::scalar::KERNELS.integer_dots(format).is_some();
        match (self, format) {
            (Self::Exact, _) => Form::Floats,
            (Self::Asym16, Format::Q8_0) if on_integers => Form::Asymmetric,
            (Self::Fast | Self::Asym16, _) if on_integers => Form::Blocks,
            (Self::Fast | Self::Asym16, _) => Form::Floats,
        }
    }

    /// All forms in which this arithmetic meets rows of `cols` weights of these formats.
    pub fn forms(self, cols: usize, formats: impl IntoIterator<Item = Format>) -> Forms {
        let mut forms = Forms {
            arithmetic: self,
            cols,
            floats: false,
            blocks: false,
            asymmetric: false,
        };
        for format in formats {
            match self.form(format, cols) {
                Form::Floats => forms.floats = true,
                Form::Blocks => forms.blocks = true,
                Form::Asymmetric => forms.asymmetric = true,
            }
        }
        forms
    }
}

/// Forms in which activations meet some matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forms {
    arithmetic: Arithmetic,
    cols: usize,
    floats: bool,
    blocks: bool,
    asymmetric: bool,
}

impl Forms {
    fn includes(&self, form: Form) -> bool {
        match form {
            Form::Floats => self.floats,
            Form::Blocks => self.blocks,
            Form::Asymmetric => self.asymmetric,
        }
    }
}

/// One position in blocks of 32.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a> {
    /// `[cols]`, within -127 to 127.
    pub(crate) quants: &'a [i8],
    /// `[cols / 32]`.
    pub(crate) scales: &'a [f32],
    /// `[cols / 32]`: sums of quants.
    pub(crate) sums: &'a [i32],
    /// `[cols / 16]`: sums of quants.
    pub(crate) halves: &'a [i16],
    /// `[cols / 32]`: the scale times the sum of the quants.
    pub(crate) scaled_sums: &'a [f32],
}

impl Blocks<'_> {
    /// Block `first` and those after it.
    #[inline(always)]
    pub(crate) fn after(self, first: usize) -> Self {
        Self {
            quants: &self.quants[first * 32..],
            scales: &self.scales[first..],
            sums: &self.sums[first..],
            halves: &self.halves[first * 2..],
            scaled_sums: &self.scaled_sums[first..],
        }
    }
}

/// One position in blocks of 16: `x = scale * quant + middle`.
#[derive(Clone, Copy)]
pub(crate) struct AsymmetricBlocks<'a> {
    /// `[cols]`, within -127 to 127.
    pub(crate) quants: &'a [i8],
    /// `[cols / 16]`.
    pub(crate) scales: &'a [f32],
    /// `[cols / 16]`.
    pub(crate) middles: &'a [f32],
}

impl AsymmetricBlocks<'_> {
    /// Block `first` and those after it.
    #[inline(always)]
    pub(crate) fn after(self, first: usize) -> Self {
        Self {
            quants: &self.quants[first * 16..],
            scales: &self.scales[first..],
            middles: &self.middles[first..],
        }
    }
}

/// Where asymmetric blocks go; the fields are those of [`AsymmetricBlocks`].
#[derive(Debug)]
pub(crate) struct AsymmetricMut<'a> {
    pub(crate) quants: &'a mut [i8],
    pub(crate) scales: &'a mut [f32],
    pub(crate) middles: &'a mut [f32],
}

/// A position and where its 8-bit forms go.
#[derive(Debug)]
struct Part<'a> {
    blocks: Option<QuantizedMut<'a>>,
    asymmetric: Option<AsymmetricMut<'a>>,
}

/// Where quantized blocks go; the fields are those of [`Blocks`].
#[derive(Debug)]
pub(crate) struct QuantizedMut<'a> {
    pub(crate) quants: &'a mut [i8],
    pub(crate) scales: &'a mut [f32],
    pub(crate) sums: &'a mut [i32],
    pub(crate) halves: &'a mut [i16],
    pub(crate) scaled_sums: &'a mut [f32],
}

/// Blocks of 16 of all positions; empty where no matrix wants them.
#[derive(Debug, Default)]
struct Asymmetric {
    quants: Vec<i8>,
    scales: Vec<f32>,
    middles: Vec<f32>,
}

impl Asymmetric {
    /// Room for `n` values.
    fn resize(&mut self, n: usize) {
        self.quants.resize(n, 0);
        self.scales.resize(n / 16, 0.0);
        self.middles.resize(n / 16, 0.0);
    }

    /// The parts of each position.
    fn positions(&mut self, cols: usize) -> impl Iterator<Item = AsymmetricMut<'_>> {
        (self.quants.chunks_mut(cols))
            .zip(self.scales.chunks_mut(cols / 16))
            .zip(self.middles.chunks_mut(cols / 16))
            .map(|((quants, scales), middles)| AsymmetricMut {
                quants,
                scales,
                middles,
            })
    }
}

/// `[n_pos, cols]` activations in the forms in which they meet the matrices that consume them, position after position in each.
#[derive(Debug, Default)]
pub struct Activations {
    n_pos: usize,
    /// `None` before anything was prepared.
    forms: Option<Forms>,
    floats: Vec<f32>,
    quants: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    halves: Vec<i16>,
    scaled_sums: Vec<f32>,
    asymmetric: Asymmetric,
    /// Empty between calls.
    parts: Vec<Part<'static>>,
}

/// An empty list with the memory of `list`: a list of what is borrowed, kept where nothing is borrowed any more. Collecting
/// an iterator over a vector reuses its memory if the elements are alike; if it did not, this would still be right.
pub(crate) fn emptied<T, U>(mut list: Vec<T>) -> Vec<U> {
    list.clear();
    list.into_iter()
        .map(|_| unreachable!("it is empty"))
        .collect()
}

impl Activations {
    /// No positions yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes `x`, row-major `[n_pos, cols]` with the columns of `forms`, in place of what was there; the team shares the
    /// positions. Only these forms can be met.
    ///
    /// # Panics
    ///
    /// If `x.len() != n_pos * cols`.
    pub fn prepare(
        &mut self,
        team: &mut Team,
        kernels: &Kernels,
        x: &[f32],
        n_pos: usize,
        forms: Forms,
    ) {
        let cols = forms.cols;
        assert_eq!(
            Some(x.len()),
            n_pos.checked_mul(cols),
            "values of {n_pos} x {cols} activations"
        );
        self.n_pos = n_pos;
        self.forms = Some(forms);
        self.floats.clear();
        if forms.floats {
            self.floats.extend_from_slice(x);
        }
        // Without columns there is nothing to quantize.
        if !(forms.blocks || forms.asymmetric) || cols == 0 {
            return;
        }
        let len_if = |wanted: bool| if wanted { x.len() } else { 0 };
        self.asymmetric.resize(len_if(forms.asymmetric));
        let len = len_if(forms.blocks);
        self.quants.resize(len, 0);
        self.scales.resize(len / 32, 0.0);
        self.sums.resize(len / 32, 0);
        self.halves.resize(len / 16, 0);
        self.scaled_sums.resize(len / 32, 0.0);
        // What belongs to a position stays together, so that each thread gets whole positions.
        let mut blocks = (self.quants.chunks_mut(cols))
            .zip(self.scales.chunks_mut(cols / 32))
            .zip(self.sums.chunks_mut(cols / 32))
            .zip(self.halves.chunks_mut(cols / 16))
            .zip(self.scaled_sums.chunks_mut(cols / 32))
            .map(
                |((((quants, scales), sums), halves), scaled_sums)| QuantizedMut {
                    quants,
                    scales,
                    sums,
                    halves,
                    scaled_sums,
                },
            );
        let mut asymmetric = self.asymmetric.positions(cols);
        let mut parts = emptied(std::mem::take(&mut self.parts));
        parts.extend((0..n_pos).map(|_| Part {
            blocks: blocks.next(),
            asymmetric: asymmetric.next(),
        }));
        team.chunks_mut(&mut parts, 1, |p, part| {
            let x = &x[p * cols..][..cols];
            for Part { blocks, asymmetric } in part {
                if let Some(blocks) = blocks {
                    kernels.quantize(x, blocks);
                }
                if let Some(asymmetric) = asymmetric {
                    kernels.quantize_asymmetric(x, asymmetric);
                }
            }
        });
        drop((blocks, asymmetric));
        self.parts = emptied(parts);
    }

    /// Positions held.
    pub fn n_pos(&self) -> usize {
        self.n_pos
    }

    /// Values per position.
    pub fn cols(&self) -> usize {
        self.forms.map_or(0, |forms| forms.cols)
    }

    /// The float values of position `p`.
    ///
    /// # Panics
    ///
    /// If there is no such position, or no matrix met floats.
    #[inline]
    pub fn position(&self, p: usize) -> &[f32] {
        assert!(p < self.n_pos, "position {p} of {}", self.n_pos);
        let cols = self.cols();
        &self.floats[p * cols..][..cols]
    }

    /// In which form these meet rows of `format`.
    ///
    /// # Panics
    ///
    /// If that form was not prepared.
    pub(crate) fn form(&self, format: Format) -> Form {
        let forms = self.forms.expect("activations were prepared");
        let form = forms.arithmetic.form(format, forms.cols);
        assert!(forms.includes(form), "{form:?} were not prepared");
        form
    }

    /// Position `p` in blocks of 32; only where the form of a format is [`Form::Blocks`].
    #[inline(always)]
    pub(crate) fn blocks(&self, p: usize) -> Blocks<'_> {
        assert!(p < self.n_pos, "position {p} of {}", self.n_pos);
        let cols = self.cols();
        let n = cols / 32;
        Blocks {
            quants: &self.quants[p * cols..][..cols],
            scales: &self.scales[p * n..][..n],
            sums: &self.sums[p * n..][..n],
            halves: &self.halves[p * n * 2..][..n * 2],
            scaled_sums: &self.scaled_sums[p * n..][..n],
        }
    }

    /// Position `p` in blocks of 16; only where the form of a format is [`Form::Asymmetric`].
    #[inline(always)]
    pub(crate) fn asymmetric(&self, p: usize) -> AsymmetricBlocks<'_> {
        assert!(p < self.n_pos, "position {p} of {}", self.n_pos);
        let cols = self.cols();
        let n = cols / 16;
        AsymmetricBlocks {
            quants: &self.asymmetric.quants[p * cols..][..cols],
            scales: &self.asymmetric.scales[p * n..][..n],
            middles: &self.asymmetric.middles[p * n..][..n],
        }
    }
}
