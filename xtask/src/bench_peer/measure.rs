//! The protocol: both programs take turns, and every run is a process of its own.

use std::path::Path;
use std::thread;

use anyhow::{Context, Result};

use super::Options;
use super::busy::{Busy, fair_share};
use super::programs::{Answers, Bandwidth, Programs, Speed, Start, Work};
use super::stats::{Series, Verdict};

/// Everything that was measured.
pub(super) struct Outcome {
    /// Of llama-cpp-python, and of ours.
    pub(super) versions: [String; 2],
    pub(super) n_prompt: u64,
    pub(super) n_decode: u64,
    pub(super) n_pairs: u32,
    pub(super) n_cores: u64,
    pub(super) models: Vec<ModelOutcome>,
}

/// Everything about one file.
pub(super) struct ModelOutcome {
    pub(super) name: String,
    pub(super) file_bytes: u64,
    pub(super) answers: Answers,
    pub(super) rows: Vec<Row>,
    pub(super) starts: Vec<StartRow>,
    pub(super) busy: Vec<BusyRow>,
}

/// Which figure of a run a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Prefill,
    Decode,
}

impl Phase {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// Tokens per second of both programs in one phase.
pub(super) struct Row {
    pub(super) n_threads: u64,
    pub(super) phase: Phase,
    pub(super) theirs: Series,
    pub(super) ours: Series,
    pub(super) verdict: Verdict,
    /// Medians of what ours measured of the machine; for decoding only, which reads all weights per token.
    pub(super) bandwidth: Option<Bandwidth>,
}

/// Seconds to the first token, and peaks of memory.
pub(super) struct StartRow {
    pub(super) n_threads: u64,
    pub(super) theirs_s: Series,
    pub(super) ours_s: Series,
    pub(super) verdict: Verdict,
    pub(super) theirs_peak_bytes: f64,
    pub(super) ours_peak_bytes: f64,
}

/// Decoding beside busy threads.
pub(super) struct BusyRow {
    pub(super) n_threads: u64,
    pub(super) n_busy: u64,
    /// Of its idle speed, as [`fair_share`] says.
    pub(super) fair_share: f64,
    pub(super) theirs: Kept,
    pub(super) ours: Kept,
    /// How the busy speeds compare; drift is that of llama.cpp's idle runs.
    pub(super) verdict: Verdict,
}

/// Decoded tokens per second without and with company.
pub(super) struct Kept {
    pub(super) idle: Series,
    pub(super) busy: Series,
}

impl Kept {
    /// Busy speed as a share of the idle one.
    pub(super) fn share(&self) -> f64 {
        self.busy.median() / self.idle.median()
    }
}

/// One turn of one program.
struct Turn {
    idle: Speed,
    busy: Option<Speed>,
}

/// Measures every model with every thread count.
pub(super) fn all(programs: &Programs, options: &Options) -> Result<Outcome> {
    let n_cores = thread::available_parallelism()
        .context("cannot tell how many cores there are")?
        .get() as u64;
    let models = options
        .models
        .iter()
        .map(|path| model(programs, options, n_cores, path));
    Ok(Outcome {
        versions: programs.versions()?,
        n_prompt: options.prompt,
        n_decode: options.decode,
        n_pairs: options.pairs,
        n_cores,
        models: models.collect::<Result<_>>()?,
    })
}

fn model(
    programs: &Programs,
    options: &Options,
    n_cores: u64,
    path: &Path,
) -> Result<ModelOutcome> {
    let name = path.file_name().unwrap_or(path.as_os_str());
    let mut outcome = ModelOutcome {
        name: name.to_string_lossy().into_owned(),
        file_bytes: path
            .metadata()
            .with_context(|| format!("cannot read {}", path.display()))?
            .len(),
        answers: programs.answers(path)?,
        rows: Vec::new(),
        starts: Vec::new(),
        busy: Vec::new(),
    };
    for n_threads in options.threads.iter().copied() {
        let (theirs, ours) = turns(programs, options, path, n_threads)?;
        for phase in [Phase::Prefill, Phase::Decode] {
            outcome.rows.push(row(n_threads, phase, &theirs, &ours));
        }
        if let Some(n_busy) = options.busy {
            let fair_share = fair_share(n_cores, n_busy, n_threads);
            outcome
                .busy
                .push(busy_row(n_threads, n_busy, fair_share, &theirs, &ours));
        }
        if options.start {
            outcome
                .starts
                .push(start_row(programs, options, path, n_threads)?);
        }
    }
    Ok(outcome)
}

fn turns(
    programs: &Programs,
    options: &Options,
    path: &Path,
    n_threads: u64,
) -> Result<(Vec<Turn>, Vec<Turn>)> {
    let work = Work {
        n_threads,
        n_prompt: options.prompt,
        n_decode: options.decode,
    };
    let turn = |run: &dyn Fn() -> Result<Speed>| {
        let idle = run()?;
        let busy = options.busy.map(|n_busy| {
            let _busy = Busy::start(n_busy)?;
            run()
        });
        Ok(Turn {
            idle,
            busy: busy.transpose()?,
        })
    };
    alternate(
        options.pairs,
        |pair| announce(path, n_threads, "speed", pair, options.pairs),
        || turn(&|| programs.llama_speed(path, work)),
        || turn(&|| programs.larql_speed(path, work)),
    )
}

fn announce(path: &Path, n_threads: u64, what: &str, pair: u32, n_pairs: u32) {
    eprintln!(
        "{}, {n_threads} threads, {what}: pair {} of {n_pairs}",
        path.display(),
        pair + 1
    );
}

/// A B, B A, A B and so on, so that neither program always follows the other.
fn alternate<T>(
    n_pairs: u32,
    announce: impl Fn(u32),
    theirs: impl Fn() -> Result<T>,
    ours: impl Fn() -> Result<T>,
) -> Result<(Vec<T>, Vec<T>)> {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for pair in 0..n_pairs {
        announce(pair);
        if pair % 2 == 0 {
            a.push(theirs()?);
            b.push(ours()?);
        } else {
            b.push(ours()?);
            a.push(theirs()?);
        }
    }
    Ok((a, b))
}

fn series<T>(runs: &[T], figure: impl Fn(&T) -> f64) -> Series {
    Series::new(runs.iter().map(figure).collect()).expect("the command line asks for two pairs")
}

fn row(n_threads: u64, phase: Phase, theirs: &[Turn], ours: &[Turn]) -> Row {
    let figure = |turn: &Turn| match phase {
        Phase::Prefill => turn.idle.prefill_tok_s,
        Phase::Decode => turn.idle.decode_tok_s,
    };
    let (theirs, our_figures) = (series(theirs, figure), series(ours, figure));
    Row {
        n_threads,
        phase,
        verdict: Verdict::of(&theirs, &our_figures),
        theirs,
        ours: our_figures,
        bandwidth: match phase {
            Phase::Prefill => None,
            Phase::Decode => bandwidth(ours),
        },
    }
}

/// Medians, if the program reported them in every run.
fn bandwidth(ours: &[Turn]) -> Option<Bandwidth> {
    let reported: Option<Vec<Bandwidth>> = ours.iter().map(|turn| turn.idle.bandwidth).collect();
    let reported = reported?;
    Some(Bandwidth {
        read_gb_s: series(&reported, |b| b.read_gb_s).median(),
        roofline_fraction: series(&reported, |b| b.roofline_fraction).median(),
    })
}

fn busy_row(
    n_threads: u64,
    n_busy: u64,
    fair_share: f64,
    theirs: &[Turn],
    ours: &[Turn],
) -> BusyRow {
    let kept = |turns: &[Turn]| Kept {
        idle: series(turns, |turn| turn.idle.decode_tok_s),
        busy: series(turns, |turn| {
            turn.busy
                .as_ref()
                .expect("every turn has a busy run when busy threads are asked for")
                .decode_tok_s
        }),
    };
    let (theirs, ours) = (kept(theirs), kept(ours));
    let verdict = match Verdict::of(&theirs.idle, &ours.idle) {
        Verdict::Drifted(by) => Verdict::Drifted(by),
        Verdict::Ratio { .. } => Verdict::ratio(&theirs.busy, &ours.busy),
    };
    BusyRow {
        n_threads,
        n_busy,
        fair_share,
        theirs,
        ours,
        verdict,
    }
}

fn start_row(
    programs: &Programs,
    options: &Options,
    path: &Path,
    n_threads: u64,
) -> Result<StartRow> {
    let (theirs, ours) = alternate(
        options.pairs,
        |pair| announce(path, n_threads, "start", pair, options.pairs),
        || programs.llama_start(path, n_threads),
        || programs.larql_start(path, n_threads),
    )?;
    let peak = |starts: &[Start]| series(starts, |start| start.peak_bytes).median();
    let (theirs_s, ours_s) = (
        series(&theirs, |start| start.first_token_s),
        series(&ours, |start| start.first_token_s),
    );
    Ok(StartRow {
        n_threads,
        verdict: Verdict::of(&theirs_s, &ours_s),
        theirs_s,
        ours_s,
        theirs_peak_bytes: peak(&theirs),
        ours_peak_bytes: peak(&ours),
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn turn(idle: f64, busy: f64) -> Turn {
        let speed = |decode_tok_s| Speed {
            prefill_tok_s: 10.0 * decode_tok_s,
            decode_tok_s,
            bandwidth: None,
        };
        Turn {
            idle: speed(idle),
            busy: Some(speed(busy)),
        }
    }

    #[test]
    fn every_second_pair_is_turned_around() {
        let order = RefCell::new(String::new());
        let run = |letter: char| {
            order.borrow_mut().push(letter);
            Ok(order.borrow().len())
        };
        let (a, b) = alternate(3, |_| (), || run('A'), || run('B')).unwrap();
        assert_eq!(*order.borrow(), "ABBAAB");
        assert_eq!((a, b), (vec![1, 4, 5], vec![2, 3, 6]));
    }

    #[test]
    fn a_row_holds_the_figures_of_its_phase() {
        let (theirs, ours) = (
            [turn(4.0, 1.0), turn(4.0, 1.0)],
            [turn(6.0, 3.0), turn(5.0, 2.0)],
        );
        let prefill = row(1, Phase::Prefill, &theirs, &ours);
        assert_eq!(prefill.ours.values(), [60.0, 50.0]);
        let decode = row(1, Phase::Decode, &theirs, &ours);
        assert_eq!(decode.ours.values(), [6.0, 5.0]);
        assert_eq!(decode.theirs.values(), [4.0, 4.0]);
    }

    #[test]
    fn a_bandwidth_that_one_run_lacks_is_absent() {
        let mut turns = [turn(4.0, 1.0), turn(4.0, 1.0)];
        let measured = Bandwidth {
            read_gb_s: 9.0,
            roofline_fraction: 0.5,
        };
        turns[0].idle.bandwidth = Some(measured);
        assert_eq!(bandwidth(&turns), None);
        turns[1].idle.bandwidth = Some(Bandwidth {
            read_gb_s: 11.0,
            ..measured
        });
        assert_eq!(
            bandwidth(&turns),
            Some(Bandwidth {
                read_gb_s: 10.0,
                roofline_fraction: 0.5
            })
        );
    }

    #[test]
    fn busy_speeds_are_compared_only_where_the_idle_control_held_still() {
        let ours = [turn(6.0, 3.0), turn(6.0, 3.0)];
        let steady = busy_row(1, 4, 0.4, &[turn(4.0, 1.0), turn(4.0, 2.0)], &ours);
        assert_eq!(steady.ours.share(), 0.5);
        assert_eq!(steady.theirs.share(), 0.375);
        assert_eq!(
            steady.verdict,
            Verdict::Ratio {
                of_medians: 2.0,
                of_pairs: [1.5, 3.0]
            }
        );
        let drifted = busy_row(1, 4, 0.4, &[turn(4.0, 1.0), turn(5.0, 1.0)], &ours);
        assert_eq!(drifted.verdict, Verdict::Drifted(0.25));
    }
}
