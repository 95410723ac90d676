//! `afterglow size`.

use std::{fs::File, io::BufReader, path::Path};

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::output::{Failure, print};
use crate::{
    config::{Invalid, Size, Span},
    size::{Estimate, Lifetime, Objects, Plan, Rates, Replay, Wishes, read_trace},
};

const HELP: &str = "\
Without --memory and --flash it finds the least that holds all objects. Of what is given it says \
what that holds. Figures are those of the memcached front end with its defaults. A trace is text, \
one request a line: the key, and behind a space its bytes (key and value) if they are known. Hit \
ratios are estimates, within some 5 points of what the engine does.

Examples:
  afterglow size --objects 1e9 --object-size 300
  afterglow size --objects 1e9 --object-size 300 --memory 64GiB --flash 400GiB --sets 20000
  afterglow size --objects 1e8 --object-size 1000 --ttl 1h --reads 50000
  afterglow size --trace requests.txt --object-size 300 --memory 8GiB --flash 100GiB";

/// Popularity unless said otherwise: YCSB's.
const ZIPF: &str = "0.99";
/// Beyond this exponent one object has all requests.
const STEEPEST: f64 = 20.0;
/// More requests a second than all machines of the world answer.
const MOST_REQUESTS: f64 = 1e12;

pub(super) fn command() -> Command {
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    Command::new("size")
        .about("Estimate memory, flash, hit ratios and drive wear for a set of objects")
        .after_help(HELP)
        .arg(
            option("objects", "N", "Number of objects, as in 1000000 or 1e9")
                .required_unless_present("trace")
                .conflicts_with("trace"),
        )
        .arg(
            option("object-size", "BYTES", "Bytes of key and value of one object, on average")
                .required(true),
        )
        .arg(
            option("zipf", "EXPONENT", "Popularity: 0 is uniform, the default is 0.99")
                .conflicts_with("trace"),
        )
        .arg(option("trace", "FILE", "Replay these requests instead"))
        .arg(option("memory", "SIZE", "Memory, as --memory of `serve`"))
        .arg(option("flash", "SIZE", "Flash in all"))
        .arg(
            option("ttl", "DURATION", "How long each object lives; needs --reads")
                .requires("reads")
                .conflicts_with("trace"),
        )
        .arg(option("reads", "N", "Reads a second; those that miss become sets"))
        .arg(option("sets", "N", "Sets a second, besides those after misses"))
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print it as JSON"))
}

pub(super) fn run(arguments: &ArgMatches) -> Result<(), Failure> {
    let given = Given(arguments);
    let size = given.whole("object-size")?.unwrap_or(1);
    let rate = |name| given.number(name, MOST_REQUESTS);
    let rates = Rates { reads: rate("reads")?, sets: rate("sets")? };
    let memory = given.parsed::<Size>("memory")?;
    let wishes = Wishes { memory, flash: given.parsed::<Size>("flash")? };
    let plan =
        |objects| Plan::find(objects, wishes).map_err(|e| Failure::failed(format!("error: {e}")));
    let estimate = match given.text("trace") {
        Some(file) => {
            let replay = read(Path::new(file), size)?;
            Estimate::trace(&plan(replay.objects())?, &replay, rates)
        }
        None => {
            let count = given.whole("objects")?.unwrap_or(1);
            let lifetime = match (given.parsed::<Span>("ttl")?, rates.reads) {
                (Some(ttl), Some(reads)) => Lifetime::Requests(ttl.get().as_secs_f64() * reads),
                _ => Lifetime::Unbounded,
            };
            let exponent = given.number("zipf", STEEPEST)?.unwrap_or(number(ZIPF).unwrap_or(1.0));
            Estimate::zipf(&plan(Objects { count, size })?, exponent, lifetime, rates)
        }
    };
    match arguments.get_flag("json") {
        false => print(&estimate.to_string()),
        true => {
            let json = serde_json::to_string_pretty(&estimate)
                .map_err(|e| Failure::failed(format!("error: {e}")))?;
            print(&format!("{json}\n"))
        }
    }
}

fn read(path: &Path, size: u64) -> Result<Replay, Failure> {
    let wrong = |why: String| Failure::usage(format!("error: --trace {}: {why}", path.display()));
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    let len =
        u32::try_from(size).map_err(|_| Failure::usage("error: --object-size is too large"))?;
    read_trace(BufReader::new(file), len).map_err(|error| wrong(error.to_string()))
}

/// What was typed.
struct Given<'a>(&'a ArgMatches);

impl Given<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.get_one::<String>(name).map(String::as_str)
    }

    fn parsed<T: std::str::FromStr<Err = Invalid>>(
        &self,
        name: &str,
    ) -> Result<Option<T>, Failure> {
        let parse = |text: &str| {
            text.parse().map_err(|error| Failure::usage(format!("error: --{name}: {error}")))
        };
        self.text(name).map(parse).transpose()
    }

    /// A number from 0 to `most`.
    fn number(&self, name: &str, most: f64) -> Result<Option<f64>, Failure> {
        let parse = |text: &str| match number(text) {
            Some(number) if number > most => {
                Err(Failure::usage(format!("error: --{name}: `{text}` is more than {most:e}")))
            }
            Some(number) => Ok(number),
            None => Err(Failure::usage(format!(
                "error: --{name}: `{text}` is not a number, as in 20000, 0.99 or 1e9"
            ))),
        };
        self.text(name).map(parse).transpose()
    }

    /// A whole number of at least 1.
    fn whole(&self, name: &str) -> Result<Option<u64>, Failure> {
        match self.number(name, f64::MAX)? {
            Some(number) if !(1.0..=1e18).contains(&number) || number.fract() != 0.0 => {
                Err(Failure::usage(format!("error: --{name}: not a whole number from 1 to 1e18")))
            }
            number => Ok(number.map(|number| number as u64)),
        }
    }
}

fn number(text: &str) -> Option<f64> {
    text.replace('_', "").parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}
