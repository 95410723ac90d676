//! `afterglow top`: the figures of a running server in a terminal.
//!
//! One thread asks the server ([`watch`]). The terminal's thread draws the answers ([`draw`]) and
//! reads keys. [`figures`] computes the difference between two answers. [`ending`] has it end for a
//! signal, or with its terminal.

mod draw;
mod ending;
mod figures;
mod view;
mod watch;

use std::io::IsTerminal;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Terminal};

use self::ending::Ending;
use self::view::{Screen, View};
use self::watch::Watch;
use super::admin_client::{self, AdminClient};
use super::output::{Failure, print};
use crate::config::Span;

/// Shorter pauses would be a load of their own.
const LEAST_INTERVAL: Duration = Duration::from_millis(100);
/// Keys are waited for so long before what has come is drawn.
const TICK: Duration = Duration::from_millis(100);
/// Lines that PageUp and PageDown scroll.
const PAGE: u16 = 10;
/// The size of a frame that is printed: wide enough for every view.
const PRINTED: (u16, u16) = (100, 40);

const HELP: &str = "\
Keys: 1 to 5 or Tab choose a view, Up and Down or k and j scroll, p pauses, q or Esc ends.

Exit status: 0 done, 1 the server cannot be asked, 2 wrong flags.

Examples:
  afterglow top
  afterglow top --admin 10.0.0.5:9180 --interval 5s
  afterglow top --once --view segments";

pub(super) fn command() -> Command {
    let views = View::ALL.map(View::word).join(", ");
    Command::new("top")
        .about("Watch a running server in the terminal")
        .after_help(HELP)
        .arg(admin_client::argument())
        .arg(
            Arg::new("interval")
                .long("interval")
                .value_name("DURATION")
                .default_value("1s")
                .help("Pause between two looks; rates are of this time"),
        )
        .arg(
            Arg::new("view")
                .long("view")
                .value_name("VIEW")
                .default_value(View::Overview.word())
                .help(format!("The view to begin with: {views}")),
        )
        .arg(
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .help("Print one view as plain text, after one interval, and end"),
        )
}

pub(super) fn run(arguments: &ArgMatches) -> Result<(), Failure> {
    let text = |name| arguments.get_one::<String>(name).map_or("", String::as_str);
    let interval: Span = text("interval")
        .parse()
        .map_err(|error| Failure::usage(format!("error: --interval: {error}")))?;
    let view = View::of(text("view")).ok_or_else(|| {
        let known = View::ALL.map(View::word).join(", ");
        Failure::usage(format!("error: --view: `{}` is not one of {known}", text("view")))
    })?;
    let admin = AdminClient::new(arguments)?;
    let interval = interval.get().max(LEAST_INTERVAL);
    let mut screen = Screen::new(admin.address(), view);
    // The first answer is waited for: one who has mistyped the address should read that.
    let failed = |error: String| Failure::failed(format!("error: {error}"));
    screen.take(watch::ask(&admin, view).map_err(failed)?);
    if arguments.get_flag("once") {
        std::thread::sleep(interval);
        screen.take(watch::ask(&admin, view).map_err(failed)?);
        return print(&plain(&screen).map_err(failed)?);
    }
    if !std::io::stdout().is_terminal() {
        return Err(Failure::usage(
            "error: standard output is not a terminal: use --once to print one view",
        ));
    }
    let no_thread = |error| Failure::failed(format!("error: no thread: {error}"));
    let watch = Watch::start(admin, view, interval).map_err(no_thread)?;
    let ending = Ending::start().map_err(no_thread)?;
    let mut terminal = ratatui::try_init()
        .map_err(|error| Failure::failed(format!("error: the terminal cannot be used: {error}")))?;
    let ended = show(&mut terminal, &mut screen, &watch, &ending);
    // What goes wrong here cannot be told on this terminal.
    let _ = ratatui::try_restore();
    ended.map_err(|error| Failure::failed(format!("error: the terminal is gone: {error}")))
}

/// Draws and hears keys until the user or a signal ends it.
fn show(
    terminal: &mut DefaultTerminal,
    screen: &mut Screen,
    watch: &Watch,
    ending: &Ending,
) -> std::io::Result<()> {
    while !ending.has_come() {
        while let Some(answer) = watch.answer() {
            match answer {
                Ok(_) if screen.paused => {}
                Ok(seen) => screen.take(seen),
                Err(why) => screen.lose(why),
            }
        }
        let mut beyond = 0;
        terminal.draw(|frame| beyond = draw::draw(screen, frame))?;
        // The view may have become shorter.
        screen.scroll = screen.scroll.min(beyond);
        if !event::poll(TICK)? {
            continue;
        }
        let Event::Key(key) = event::read()? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        let ctrl_c = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
            KeyCode::Char('c') if ctrl_c => return Ok(()),
            key => press(key, screen),
        }
        watch.look_at(screen.view);
    }
    Ok(())
}

/// What a key changes on the screen. Drawing bounds how far it is scrolled.
fn press(key: KeyCode, screen: &mut Screen) {
    match key {
        KeyCode::Char('p') => screen.paused = !screen.paused,
        KeyCode::Tab => screen.choose(screen.view.next()),
        KeyCode::Down | KeyCode::Char('j') => screen.scroll = screen.scroll.saturating_add(1),
        KeyCode::Up | KeyCode::Char('k') => screen.scroll = screen.scroll.saturating_sub(1),
        KeyCode::PageDown => screen.scroll = screen.scroll.saturating_add(PAGE),
        KeyCode::PageUp => screen.scroll = screen.scroll.saturating_sub(PAGE),
        KeyCode::Home => screen.scroll = 0,
        KeyCode::End => screen.scroll = u16::MAX,
        KeyCode::Char(key) => screen.choose(View::at(key).unwrap_or(screen.view)),
        _ => {}
    }
}

/// One frame as text, without the spaces and lines at its end.
fn plain(screen: &Screen) -> Result<String, String> {
    let (width, height) = PRINTED;
    let mut terminal =
        Terminal::new(TestBackend::new(width, height)).map_err(|error| error.to_string())?;
    let drawn = terminal.draw(|frame| {
        draw::draw(screen, frame);
    });
    drawn.map_err(|error| error.to_string())?;
    let buffer = terminal.backend().buffer();
    let line = |row: u16| {
        let cells = (0..width).map(|column| buffer[(column, row)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    let text = (0..height).map(line).collect::<Vec<_>>().join("\n");
    Ok(format!("{}\n", text.trim_end()))
}

#[cfg(test)]
mod tests;
