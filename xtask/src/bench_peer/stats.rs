//! Medians, spreads, and whether two series may be compared at all.

/// How far the control's last run may be from its first: beyond it the machine has changed, and a ratio would say how.
const DRIFT_MAX: f64 = 0.15;

/// One figure of one program in the order of its runs; never empty.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series(Vec<f64>);

impl Series {
    /// `None` for a series without runs.
    pub(super) fn new(values: Vec<f64>) -> Option<Self> {
        (!values.is_empty()).then_some(Self(values))
    }

    /// The middle value, or the mean of the two.
    pub(super) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        }
    }

    /// Smallest and largest.
    pub(super) fn spread(&self) -> [f64; 2] {
        self.0
            .iter()
            .fold([f64::INFINITY, f64::NEG_INFINITY], |[min, max], value| {
                [min.min(*value), max.max(*value)]
            })
    }

    /// How much larger the larger of the first and the last value is, as a share of the smaller.
    fn drift(&self) -> f64 {
        let (first, last) = (self.0[0], self.0[self.0.len() - 1]);
        first.max(last) / first.min(last) - 1.0
    }

    pub(super) fn values(&self) -> &[f64] {
        &self.0
    }
}

/// What the runs say about two programs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Verdict {
    /// The machine held still.
    Ratio {
        /// Median of ours over median of the control.
        of_medians: f64,
        /// The smallest and the largest ratio within one pair.
        of_pairs: [f64; 2],
    },
    /// The control changed by this share, so there is no ratio.
    Drifted(f64),
}

impl Verdict {
    /// Compares ours with the control, pair by pair.
    pub(super) fn of(control: &Series, ours: &Series) -> Self {
        let drift = control.drift();
        if drift.is_nan() || drift > DRIFT_MAX {
            return Self::Drifted(drift);
        }
        Self::ratio(control, ours)
    }

    /// The ratio alone, of runs whose control was judged elsewhere.
    pub(super) fn ratio(control: &Series, ours: &Series) -> Self {
        assert_eq!(control.0.len(), ours.0.len(), "runs come in pairs");
        let pairs = ours
            .0
            .iter()
            .zip(&control.0)
            .map(|(our, their)| our / their);
        Self::Ratio {
            of_medians: ours.median() / control.median(),
            of_pairs: Series(pairs.collect()).spread(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Series {
        Series::new(values.to_vec()).unwrap()
    }

    #[test]
    fn the_median_does_not_depend_on_the_order() {
        assert_eq!(series(&[9.0, 1.0, 4.0]).median(), 4.0);
        assert_eq!(series(&[9.0, 1.0, 4.0, 6.0]).median(), 5.0);
        assert_eq!(series(&[9.0, 1.0, 4.0]).spread(), [1.0, 9.0]);
        assert_eq!(Series::new(Vec::new()), None);
    }

    #[test]
    fn ratios_are_of_medians_and_of_pairs() {
        let verdict = Verdict::of(&series(&[10.0, 8.0, 10.0]), &series(&[20.0, 12.0, 25.0]));
        assert_eq!(
            verdict,
            Verdict::Ratio {
                of_medians: 2.0,
                of_pairs: [1.5, 2.5]
            }
        );
    }

    #[test]
    fn a_control_that_became_slower_or_faster_gives_no_ratio() {
        let ours = series(&[10.0, 10.0, 10.0]);
        for control in [[10.0, 10.0, 8.6], [8.6, 10.0, 10.0]] {
            let Verdict::Drifted(by) = Verdict::of(&series(&control), &ours) else {
                panic!("{control:?} has drifted");
            };
            assert!((by - 0.1628).abs() < 1e-4, "{by}");
        }
        // 14.9 %, and an outlier between the ends is no drift.
        let control = series(&[11.49, 3.0, 10.0]);
        assert!(matches!(
            Verdict::of(&control, &ours),
            Verdict::Ratio { .. }
        ));
    }

    #[test]
    fn a_control_that_stands_still_gives_no_ratio() {
        let verdict = Verdict::of(&series(&[0.0, 0.0]), &series(&[1.0, 1.0]));
        assert!(matches!(verdict, Verdict::Drifted(by) if by.is_nan()));
    }
}
