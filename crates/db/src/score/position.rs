//! One position: what the token that came cost, and how far two distributions are apart. All in f64.

use larql_engine::{argmax, log_sum_exp};

/// What one position comes to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scored {
    /// `-ln p(token)` of the run.
    pub(super) nats: f64,
    /// The comparison with the reference, if there is one.
    pub(super) compared: Option<Compared>,
}

/// The run beside the reference at one position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Compared {
    /// `-ln p(token)` of the reference.
    pub(super) reference_nats: f64,
    /// `KL(reference || run)`.
    pub(super) kl_nats: f64,
    /// Whether both have the same most likely token.
    pub(super) same_top: bool,
}

/// Whose logit cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotFinite {
    pub(super) side: Side,
    pub(super) id: usize,
}

/// One of the two runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Run,
    Reference,
}

/// Scores a position whose next token was `target`; both rows are `[d_vocab]`.
pub(super) fn scored(
    run: &[f32],
    reference: Option<&[f32]>,
    target: u32,
) -> Result<Scored, NotFinite> {
    let check = |side, logits: &[f32]| match logits.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(id) => Err(NotFinite { side, id }),
    };
    check(Side::Run, run)?;
    let target = target as usize;
    let run_sum = log_sum_exp(run);
    let compared = match reference {
        None => None,
        Some(reference) => {
            check(Side::Reference, reference)?;
            let reference_sum = log_sum_exp(reference);
            Some(Compared {
                reference_nats: reference_sum - f64::from(reference[target]),
                kl_nats: kl(reference, reference_sum, run, run_sum),
                same_top: argmax(reference) == argmax(run),
            })
        }
    };
    Ok(Scored {
        nats: run_sum - f64::from(run[target]),
        compared,
    })
}

/// `sum_i p_i (ln p_i - ln q_i)` in nats, `p` and `q` the softmaxes of finite logits `[d_vocab]`.
///
/// # Panics
/// If the lengths differ.
pub fn kl_divergence(p: &[f32], q: &[f32]) -> f64 {
    kl(p, log_sum_exp(p), q, log_sum_exp(q))
}

fn kl(p: &[f32], p_sum: f64, q: &[f32], q_sum: f64) -> f64 {
    assert_eq!(p.len(), q.len(), "distributions over one vocabulary");
    let sum: f64 = p
        .iter()
        .zip(q)
        .map(|(p, q)| {
            let log_p = f64::from(*p) - p_sum;
            log_p.exp() * (log_p - (f64::from(*q) - q_sum))
        })
        .sum();
    // Never negative but for rounding (Gibbs' inequality); not `max`, which would turn a NaN into a zero.
    if sum < 0.0 { 0.0 } else { sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_by_hand() {
        // Softmaxes 1/2 1/4 1/4 and 1/8 3/4 1/8: KL(p || q) = 1/2 ln 4 + 1/4 ln(1/3) + 1/4 ln 2.
        let p = [2f32.ln(), 0.0, 0.0].map(|x| x + 3.0);
        let q = [0.0, 6f32.ln(), 0.0].map(|x| x - 7.0);
        let want = 0.5 * 4f64.ln() - 0.25 * 3f64.ln() + 0.25 * 2f64.ln();
        // The logits are rounded to float32 at a magnitude below 8.
        let slack = 4.0 * f64::from(f32::EPSILON) * 8.0;
        assert!((kl_divergence(&p, &q) - want).abs() < slack);
        let got = scored(&q, Some(&p), 1).unwrap();
        let compared = got.compared.unwrap();
        assert!((got.nats - (4f64 / 3.0).ln()).abs() < slack);
        assert!((compared.reference_nats - 4f64.ln()).abs() < slack);
        assert_eq!(
            (compared.kl_nats, compared.same_top),
            (kl_divergence(&p, &q), false)
        );
        assert!(
            (kl_divergence(&q, &p) - want).abs() > 0.01,
            "the direction matters"
        );
        assert_eq!(
            scored(&q, Some(&q), 2).unwrap().compared.unwrap().kl_nats,
            0.0
        );
    }

    #[test]
    fn certainty_of_the_reference_is_no_division_by_zero() {
        let (sure, flat) = ([3000.0, 0.0, -3000.0], [0.0f32; 3]);
        assert!((kl_divergence(&sure, &flat) - 3f64.ln()).abs() < 1e-12);
        assert!((kl_divergence(&flat, &sure) - (3000.0 - 3f64.ln())).abs() < 1e-9);
    }

    #[test]
    fn a_logit_that_is_not_finite_is_named_with_its_side() {
        let (good, bad) = ([0.0f32; 3], [0.0, f32::NAN, f32::INFINITY]);
        let on = |side| NotFinite { side, id: 1 };
        assert_eq!(scored(&bad, Some(&good), 0), Err(on(Side::Run)));
        assert_eq!(scored(&good, Some(&bad), 0), Err(on(Side::Reference)));
        let masked = [0.0, 1.0, f32::NEG_INFINITY];
        assert_eq!(scored(&masked, None, 0).unwrap_err().id, 2);
    }
}
