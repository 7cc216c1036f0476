//! Measures what a decode-like load gets of the machine while other processes keep its cores busy.
//!
//! Run with `cargo run --release -p larql-kernels --example team_load [THREADS [RUNS]]`.
//! A step is a dispatch of about 100 us per thread and about 10 us of serial work.  Every row is a number of busy
//! processes and of pieces per thread; "fair" is the speed that an equal division of the cores among all busy threads
//! would give, so 100 % of it is what a load without any waiting reaches.  The rows are visited in turn and the median
//! of the runs counts, so that a drift of the machine reaches all of them.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a measurement prints its table"
)]

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use larql_kernels::Team;

/// Work of one thread in a dispatch.
const SHARE: Duration = Duration::from_micros(100);

/// Work of the caller between two dispatches.
const SERIAL: Duration = Duration::from_micros(10);

/// How long one run lasts: hundreds of the scheduler's time slices.
const RUN: Duration = Duration::from_millis(1500);

/// Busy processes beside the team.
const BUSY: [usize; 3] = [0, 2, 4];

/// Chunks per thread: as many as threads, and enough for one thread to take over parts of another's share.
const PIECES: [usize; 2] = [1, 8];

/// The argument that makes this program a busy process.
const SPIN: &str = "spin";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == SPIN) {
        return spin();
    }
    let number = |i: usize| args.get(i).and_then(|arg| arg.parse().ok());
    let n_threads = number(0).unwrap_or_else(Team::default_threads);
    let n_runs = number(1).map_or(5, NonZeroUsize::get);
    let cores = Team::default_threads().get();
    let loops = calibrate();
    let mut team = Team::new(n_threads);
    let mut speeds = vec![Vec::new(); BUSY.len() * PIECES.len()];
    for _ in 0..n_runs {
        for (b, &n_busy) in BUSY.iter().enumerate() {
            let busy: Vec<Busy> = (0..n_busy).map(|_| Busy::start()).collect();
            thread::sleep(Duration::from_millis(50));
            for (p, &pieces) in PIECES.iter().enumerate() {
                speeds[b * PIECES.len() + p].push(steps_per_s(&mut team, pieces, loops));
            }
            drop(busy);
        }
    }
    println!("{} threads on {cores} cores", team.n_threads());
    println!("busy  pieces  steps/s (min, median, max)  of the fair share");
    let speeds: Vec<[f64; 3]> = speeds
        .into_iter()
        .map(|mut runs| {
            runs.sort_by(f64::total_cmp);
            [runs[0], runs[runs.len() / 2], runs[runs.len() - 1]]
        })
        .collect();
    for (b, &n_busy) in BUSY.iter().enumerate() {
        let wanted = team.n_threads() + n_busy;
        let fair = (cores as f64 / wanted as f64).min(1.0);
        for (p, pieces) in PIECES.iter().enumerate() {
            let [min, median, max] = speeds[b * PIECES.len() + p];
            let alone = speeds[p][1];
            println!(
                "{n_busy:4}  {pieces:6}  {min:8.0} {median:8.0} {max:8.0}  {:15.0} %",
                100.0 * median / (alone * fair)
            );
        }
    }
}

/// Steps per second over one run.
fn steps_per_s(team: &mut Team, pieces: usize, loops: f64) -> f64 {
    let mut sums = vec![0u64; team.n_threads() * pieces];
    let of = |time: Duration| (loops * time.as_secs_f64()) as u64;
    let chunk = of(SHARE) / pieces as u64;
    let start = Instant::now();
    let mut n_steps = 0u32;
    while start.elapsed() < RUN {
        team.chunks_mut(&mut sums, 1, |_, sum| sum[0] = work(chunk));
        black_box(work(of(SERIAL)));
        n_steps += 1;
    }
    f64::from(n_steps) / start.elapsed().as_secs_f64()
}

/// Work that only a core can speed up: `loops` dependent multiplications.
fn work(loops: u64) -> u64 {
    (0..loops).fold(black_box(1), |x: u64, i| {
        x.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7) ^ i
    })
}

/// Loops of [`work`] per second; the best of many tries, as interference only slows.
fn calibrate() -> f64 {
    const LOOPS: u64 = 100_000;
    let best = (0..500)
        .map(|_| {
            let start = Instant::now();
            black_box(work(LOOPS));
            start.elapsed()
        })
        .min()
        .expect("there are tries");
    LOOPS as f64 / best.as_secs_f64()
}

/// A process that keeps a core busy until it is dropped.
struct Busy(Child);

impl Busy {
    fn start() -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        Self(
            Command::new(program)
                .arg(SPIN)
                .spawn()
                .expect("the system starts a process"),
        )
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait().map(drop)) {
            eprintln!("a busy process did not end: {error}");
        }
    }
}

/// Ends by itself some time after the run, so that nothing stays behind when this program is interrupted.
fn spin() {
    let start = Instant::now();
    while start.elapsed() < RUN * 4 {
        black_box(work(1_000_000));
    }
}
