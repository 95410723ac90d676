//! What passing through the front end adds to a read, next to the database itself and a bare relay.

use std::time::Duration;

use afterglow_loadgen::cql::run::Warm;

use super::super::{
    BenchError, progress,
    report::{Check, Run, Section, Series},
};
use super::{CLIENT_CORE, CqlBench, ReadLoad, as_run, relay::Relay, server::CqlServer};
use crate::comparison::median;

/// Added by passing through at half of the database's maximum, p50, in microseconds.
const ADDED: f64 = 40.0;
/// The highest throughput through Afterglow, at least, of that directly.
const SHARE: f64 = 0.95;
/// Warming up, so many times a run: a JVM goes on compiling long after its throughput looks level.
const WARMUP: f64 = 20.0;
const HALF: &str = "Passing through, at half of the database's maximum";

impl CqlBench<'_> {
    /// What passing through adds, and what it does to the highest throughput.
    pub(super) fn pass_through(&mut self) {
        let o = self.options;
        let length = Duration::from_secs_f64(WARMUP * o.seconds);
        progress(format_args!("warming the database for {} s", length.as_secs()));
        let warm = ReadLoad { warm: Warm::For(length), ..self.shape(&o.backend, self.small()) };
        if let Err(error) = self.run(&ReadLoad { watch: o.backend_pid, ..warm }) {
            self.reject("Warming the database", error);
        }
        let data = self.scratch.path().join("pass").display().to_string();
        let options = [
            "--backend",
            &o.backend,
            "--data-dir",
            &data,
            "--flash-size",
            "64MiB",
            "--table-policy",
            "*.*=off",
        ];
        let (mut half, mut full) = (None, None);
        let relay = Relay::start(&o.backend, CLIENT_CORE).map_err(BenchError::io("relay bytes"));
        match CqlServer::start(&o.program, CLIENT_CORE, &options)
            .and_then(|server| Ok((server, relay?)))
        {
            Ok((server, relay)) => {
                let contenders = [
                    ("directly", o.backend.as_str(), o.backend_pid),
                    ("through Afterglow", server.address.as_str(), Some(server.pid())),
                    ("through a bare relay", relay.address.as_str(), None),
                ];
                let section = Section::new(
                    "Passing through, flat out",
                    "4 connections, 32 reads in flight on each",
                );
                let flat_out = self.in_turn(section, &contenders, None);
                match &flat_out.series[0].runs[..] {
                    [] => self.reject(HALF, "how much the database can do is not known"),
                    runs => {
                        let highest = median(runs.iter().map(|r| r.per_second));
                        self.report.figure(
                            "highest throughput of the database, directly",
                            highest,
                            "/s",
                        );
                        half = Some(self.at_half(&contenders, highest / 2.0));
                    }
                }
                full = Some(flat_out);
                if let Err(error) = server.stop() {
                    self.reject("the end of passing through", error);
                }
            }
            Err(error) => self.reject("Passing through", error),
        }
        self.judge_passing(half, full);
    }

    fn at_half(&mut self, contenders: &[(&str, &str, Option<u32>)], rate: f64) -> Section {
        self.rest(HALF);
        let note = format!(
            "{rate:.0} reads/s in equal distances over 4 connections, client and what it goes through on one core"
        );
        self.in_turn(Section::new(HALF, note), contenders, Some(rate))
    }

    fn judge_passing(&mut self, half: Option<Section>, full: Option<Section>) {
        let within = |p50| Check::at_most("added by passing through, p50, us", p50, ADDED);
        let check = match half.as_ref().map(|section| &section.series[..]) {
            Some([direct, through, relay]) if !direct.runs.is_empty() => {
                let added = |by: &Series, figure: fn(&Run) -> f64| {
                    median(by.runs.iter().zip(&direct.runs).map(|(a, b)| figure(a) - figure(b)))
                };
                let p99 = added(through, |r| r.latency.p99_us);
                self.report.figure("added by passing through, p99", p99, "us");
                let bare = added(relay, |r| r.latency.p50_us);
                self.report.figure("added by a relay that only copies bytes, p50", bare, "us");
                within(added(through, |r| r.latency.p50_us))
            }
            _ => within(0.0).unmeasured(),
        };
        self.report.checks.push(check);
        let share = |by: &str| format!("highest throughput through {by}, share of that directly");
        let at_least = |value| Check::at_least(share("Afterglow"), value, SHARE);
        let check = match full.as_ref().map(|section| &section.series[..]) {
            Some([direct, through, relay]) if !direct.runs.is_empty() => {
                let bare = relay.ratio_to(direct);
                self.report.figure(share("a relay that only copies bytes"), bare, "");
                at_least(through.ratio_to(direct))
            }
            _ => at_least(0.0).unmeasured(),
        };
        self.report.checks.push(check);
        self.report.sections.extend([half, full].into_iter().flatten());
    }

    /// As many runs of each as asked for, in alternating order. Of a round all runs count, or none.
    fn in_turn(
        &mut self,
        mut section: Section,
        contenders: &[(&str, &str, Option<u32>)],
        rate: Option<f64>,
    ) -> Section {
        section.series = contenders
            .iter()
            .map(|(name, ..)| Series { name: (*name).into(), runs: Vec::new() })
            .collect();
        for round in 1..=self.options.runs {
            progress(format_args!("{}: round {round} of {}", section.name, self.options.runs));
            let mut order: Vec<usize> = (0..contenders.len()).collect();
            if round % 2 == 0 {
                order.reverse();
            }
            let mut runs: Vec<Option<Run>> = vec![None; contenders.len()];
            for at in order {
                let (name, host, watch) = contenders[at];
                match self.run(&ReadLoad { rate, watch, ..self.shape(host, self.small()) }) {
                    Ok(result) => runs[at] = Some(as_run(&result, false)),
                    Err(error) => {
                        self.reject(&format!("{}, {name}, round {round}", section.name), error)
                    }
                }
            }
            if runs.iter().all(Option::is_some) {
                section
                    .series
                    .iter_mut()
                    .zip(runs)
                    .for_each(|(series, run)| series.runs.extend(run));
                continue;
            }
            for ((name, ..), run) in contenders.iter().zip(runs) {
                if let Some(run) = run {
                    let name = format!("{}, {name}, round {round}", section.name);
                    self.reject_run(name, run, "another run of its round does not count");
                }
            }
        }
        section
    }
}
