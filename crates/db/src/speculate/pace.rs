//! How many tokens to draft, and when not to: whatever makes the most tokens per second by what was measured.
//!
//! For a draft of `k` tokens the expected gain is `E(k) = 1 + h1 + h1 h2 + ... + h1 .. hk`, `h_i` being the share of recent
//! drafts whose `i`-th token was kept where the ones before it were; its cost is that of drafting, of a pass of `k + 1`
//! positions, and of running kept tokens again where a running state had to go back. The `k` with the best `E / cost` is
//! taken (after Leviathan et al. 2023, theorem 3.8, with measured costs). If none beats a single step by
//! [`GAIN_MIN`], drafting pauses, each time for twice as long.
//!
//! All of this chooses only how much is run ahead; what the tokens are does not depend on it.

use std::collections::VecDeque;
use std::time::Duration;

/// Most tokens of a draft: a pass of more positions costs nearly as much more as it has more of them.
pub const DRAFT_TOKENS_MAX: usize = 8;

/// A draft must promise this much more speed than single steps, or noise would decide.
const GAIN_MIN: f64 = 1.05;
/// Single steps measured before the first draft; the first one after a prompt is not typical.
const SINGLE_STEPS_FIRST: usize = 3;
/// Measurements of which the median counts.
const RECENT: usize = 8;
/// Drafted tokens whose fate counts.
const OUTCOMES: usize = 48;
/// What an untried length is believed to keep, and with the weight of how many observations.
const KEPT_BELIEVED: (f64, f64) = (0.75, 2.0);
/// What each further position of a pass is believed to cost until measured, in single steps: optimistic, to be tried.
const POSITION_BELIEVED: f64 = 0.15;
/// Passes without drafts after the first time drafting did not pay, and at most.
const PAUSE_PASSES: (usize, usize) = (16, 512);

/// How the length of drafts is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftLength {
    /// As it pays, up to [`DRAFT_TOKENS_MAX`]; none while it does not.
    Adaptive,
    /// Always so many, at most [`DRAFT_TOKENS_MAX`], for experiments.
    Fixed(usize),
}

/// What kept tokens cost again after a draft that was not kept whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replay {
    /// Nothing: layers forget single positions.
    Free,
    /// One more pass over them.
    OnePass,
}

/// What was measured, and what follows from it.
#[derive(Debug)]
pub(super) struct Pace {
    length: DraftLength,
    replay: Replay,
    /// Seconds of passes by their number of positions, less one.
    pass_s: Vec<Recent>,
    /// Seconds of drafting, per token.
    draft_s: Recent,
    /// What drafting a token is believed to cost until measured, in single steps.
    draft_believed: f64,
    /// Index in its draft, and whether it was kept.
    outcomes: VecDeque<(usize, bool)>,
    pause_left: usize,
    pause_passes: usize,
    n_pauses: u64,
}

impl Pace {
    /// Nothing measured yet.
    pub(super) fn new(length: DraftLength, draft_believed: f64) -> Self {
        Self {
            length,
            replay: Replay::Free,
            pass_s: vec![Recent::default(); DRAFT_TOKENS_MAX + 1],
            draft_s: Recent::default(),
            draft_believed,
            outcomes: VecDeque::new(),
            pause_left: 0,
            pause_passes: PAUSE_PASSES.0,
            n_pauses: 0,
        }
    }

    /// Begins a continuation by a model whose kept tokens cost this after a draft that was not kept whole.
    pub(super) fn begin(&mut self, replay: Replay) {
        self.replay = replay;
        self.pause_left = 0;
        self.pause_passes = PAUSE_PASSES.0;
        self.n_pauses = 0;
        self.outcomes.clear();
    }

    /// Times that drafting was turned off.
    pub(super) fn n_pauses(&self) -> u64 {
        self.n_pauses
    }

    /// Whether drafting is turned off.
    pub(super) fn is_paused(&self) -> bool {
        self.pause_left > 0
    }

    /// How many tokens to draft before the next pass, at most `n_max`.
    pub(super) fn plan(&mut self, n_max: usize) -> usize {
        let n_max = n_max.min(DRAFT_TOKENS_MAX);
        match self.length {
            DraftLength::Fixed(n) => return n.min(n_max),
            DraftLength::Adaptive => {}
        }
        if self.pause_left > 0 {
            self.pause_left -= 1;
            return 0;
        }
        if n_max == 0 || self.pass_s[0].len() < SINGLE_STEPS_FIRST {
            return 0;
        }
        let gain = |k: usize| self.expected(k) * self.pass_cost(1) / self.cost(k);
        let best = (1..=DRAFT_TOKENS_MAX)
            .map(|k| (k, gain(k)))
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .filter(|(_, gain)| *gain >= GAIN_MIN);
        match best {
            Some((k, _)) => k.min(n_max),
            None => {
                self.pause();
                0
            }
        }
    }

    fn pause(&mut self) {
        self.n_pauses += 1;
        self.pause_left = self.pause_passes;
        self.pause_passes = (self.pause_passes * 2).min(PAUSE_PASSES.1);
        // The next attempt begins without the measurements that ended this one.
        self.outcomes.clear();
        self.draft_s = Recent::default();
        self.pass_s[1..]
            .iter_mut()
            .for_each(|recent| *recent = Recent::default());
    }

    /// A pass of so many positions took so long.
    pub(super) fn passed(&mut self, n_positions: usize, took: Duration) {
        if let Some(recent) = self.pass_s.get_mut(n_positions - 1) {
            recent.push(took.as_secs_f64());
        }
    }

    /// Drafting so many tokens took so long.
    pub(super) fn drafted(&mut self, n_tokens: usize, took: Duration) {
        if n_tokens > 0 {
            self.draft_s.push(took.as_secs_f64() / n_tokens as f64);
        }
    }

    /// Of a draft of `n_drafted` tokens the first `n_kept` were kept, and the next one, if any, was not.
    pub(super) fn settled(&mut self, n_drafted: usize, n_kept: usize) {
        self.outcomes.extend((0..n_kept).map(|i| (i, true)));
        if n_kept < n_drafted {
            self.outcomes.push_back((n_kept, false));
        } else {
            self.pause_passes = PAUSE_PASSES.0;
        }
        let excess = self.outcomes.len().saturating_sub(OUTCOMES);
        self.outcomes.drain(..excess);
    }

    /// Tokens that a pass with a draft of `k` is expected to give.
    fn expected(&self, k: usize) -> f64 {
        let (share, weight) = KEPT_BELIEVED;
        let (mut reached, mut sum) = (1.0, 1.0);
        for i in 0..k {
            let seen = self.outcomes.iter().filter(|(at, _)| *at == i);
            let kept = seen.clone().filter(|(_, kept)| *kept).count();
            reached *= (kept as f64 + share * weight) / (seen.count() as f64 + weight);
            sum += reached;
        }
        sum
    }

    /// Seconds that a draft of `k`, its pass and what follows from it are expected to take.
    fn cost(&self, k: usize) -> f64 {
        let believed = self.draft_believed * self.pass_cost(1);
        let drafting = k as f64 * self.draft_s.median().unwrap_or(believed);
        let again = match self.replay {
            Replay::Free => 0.0,
            Replay::OnePass => {
                let kept_whole = self.expected(k) - self.expected(k - 1);
                let n_again = (self.expected(k).ceil() as usize + 1).min(DRAFT_TOKENS_MAX + 1);
                (1.0 - kept_whole) * (self.pass_cost(n_again) - self.pass_cost(1))
            }
        };
        drafting + self.pass_cost(k + 1) + again
    }

    /// Seconds of a pass: measured, or on the line through the nearest measured ones.
    fn pass_cost(&self, n_positions: usize) -> f64 {
        let measured = |n: &usize| self.pass_s[n - 1].median().map(|s| (*n as f64, s));
        let below = (1..=n_positions).rev().find_map(|n| measured(&n));
        let above = (n_positions..=DRAFT_TOKENS_MAX + 1).find_map(|n| measured(&n));
        let single = measured(&1).map_or(0.0, |(_, s)| s);
        let (x, (n, s)) = (n_positions as f64, below.unwrap_or((1.0, single)));
        match above {
            _ if n == x => s,
            Some((n_above, s_above)) => s + (s_above - s) * (x - n) / (n_above - n),
            None if n > 1.0 => s + (s - single) * (x - n) / (n - 1.0),
            None => s + single * POSITION_BELIEVED * (x - n),
        }
    }
}

/// The last few measurements of one thing.
#[derive(Debug, Clone, Default)]
struct Recent(VecDeque<f64>);

impl Recent {
    fn push(&mut self, value: f64) {
        if self.0.len() == RECENT {
            self.0.pop_front();
        }
        self.0.push_back(value);
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    /// The middle one, the smaller of two.
    fn median(&self) -> Option<f64> {
        let mut sorted: Vec<f64> = self.0.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len().checked_sub(1)? / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `n` rounds in which a pass of `m` positions takes `1 + slope * (m - 1)` ms, a drafted token `draft` ms, and each
    /// draft keeps up to `kept`; gives the planned lengths.
    fn rounds(pace: &mut Pace, n: usize, slope: f64, draft: f64, kept: usize) -> Vec<usize> {
        let ms = |ms: f64| Duration::from_secs_f64(ms / 1e3);
        (0..n)
            .map(|_| {
                let k = pace.plan(DRAFT_TOKENS_MAX);
                pace.drafted(k, ms(draft * k as f64));
                pace.passed(k + 1, ms(1.0 + slope * k as f64));
                if k > 0 {
                    pace.settled(k, kept.min(k));
                }
                k
            })
            .collect()
    }

    #[test]
    fn drafts_grow_while_everything_is_kept_and_cheap() {
        let mut pace = Pace::new(DraftLength::Adaptive, 0.0);
        let lengths = rounds(&mut pace, 20, 0.1, 0.0, DRAFT_TOKENS_MAX);
        assert_eq!(
            lengths[..SINGLE_STEPS_FIRST],
            [0; 3],
            "single steps come first"
        );
        assert!(lengths[SINGLE_STEPS_FIRST..].iter().all(|k| *k > 0));
        assert_eq!(lengths[15..], [DRAFT_TOKENS_MAX; 5]);
        assert_eq!(pace.n_pauses(), 0);
    }

    #[test]
    fn drafts_shrink_to_what_is_kept() {
        let mut pace = Pace::new(DraftLength::Adaptive, 0.0);
        let lengths = rounds(&mut pace, 60, 0.3, 0.0, 2);
        // Longer ones are tried again once their failures are long ago.
        let n_fitting = lengths[20..].iter().filter(|k| **k == 2).count();
        assert!(n_fitting >= 30, "{n_fitting} of 40: {lengths:?}");
    }

    #[test]
    fn what_is_never_kept_turns_it_off_for_longer_and_longer() {
        let mut pace = Pace::new(DraftLength::Adaptive, 0.0);
        let lengths = rounds(&mut pace, 200, 0.2, 0.0, 0);
        let n_tried = lengths.iter().filter(|k| **k > 0).count();
        assert!(pace.is_paused() && pace.n_pauses() >= 3, "{lengths:?}");
        assert!(n_tried < 30, "{n_tried} of 200: {lengths:?}");
        let longest_off = lengths.split(|k| *k > 0).map(<[usize]>::len).max().unwrap();
        assert!(longest_off >= 4 * PAUSE_PASSES.0, "{lengths:?}");
    }

    #[test]
    fn kept_tokens_do_not_pay_for_passes_or_drafts_that_cost_as_much() {
        for (slope, draft) in [(1.0, 0.0), (0.1, 1.1)] {
            let mut pace = Pace::new(DraftLength::Adaptive, 0.0);
            rounds(&mut pace, 40, slope, draft, DRAFT_TOKENS_MAX);
            assert!(pace.n_pauses() > 0, "{slope} {draft}");
        }
    }

    #[test]
    fn running_kept_tokens_again_counts() {
        let plan = |replay| {
            let mut pace = Pace::new(DraftLength::Adaptive, 0.0);
            pace.begin(replay);
            for i in 0..24 {
                for n_positions in [1, 2, 3] {
                    let ms = 1.0 + 0.4 * (n_positions - 1) as f64;
                    pace.passed(n_positions, Duration::from_secs_f64(ms / 1e3));
                }
                pace.settled(2, i % 2);
            }
            pace.plan(DRAFT_TOKENS_MAX)
        };
        assert_eq!((plan(Replay::Free), plan(Replay::OnePass)), (1, 0));
    }

    #[test]
    fn a_fixed_length_stays_within_what_is_possible() {
        let mut pace = Pace::new(DraftLength::Fixed(5), 0.0);
        assert_eq!([pace.plan(9), pace.plan(3), pace.plan(0)], [5, 3, 0]);
        assert_eq!(
            Pace::new(DraftLength::Fixed(50), 0.0).plan(99),
            DRAFT_TOKENS_MAX
        );
    }
}
