//! The views, drawn: the same on a terminal and in a frame that is printed.

use std::collections::BTreeMap;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Sparkline, Table};

use super::figures::{Interval, percentile};
use super::view::{Screen, View};
use crate::cli::units::{bytes, micros, percent, short};
use crate::hotkeys::report::HotEntry;
use crate::metrics::figures::ByWord;

const QUIET: Style = Style::new().fg(Color::DarkGray);
const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

/// Draws the whole screen, and says how many lines of the view can be scrolled away.
pub(super) fn draw(screen: &Screen, frame: &mut Frame<'_>) -> u16 {
    let [head, tabs, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(head_line(screen), head);
    frame.render_widget(tab_line(screen.view), tabs);
    let mut beyond = 0;
    match screen.view {
        View::Overview => overview(screen, frame, body),
        View::Latency => latency(screen, frame, body),
        View::Reasons => reasons(screen, frame, body),
        View::Segments => beyond = segments(screen, frame, body),
        View::HotKeys => beyond = hot_keys(screen, frame, body),
    }
    frame.render_widget(foot_line(screen, beyond > 0), foot);
    beyond
}

fn head_line(screen: &Screen) -> Line<'static> {
    let seen = &screen.now.overview;
    let state = match (&screen.away, &*seen.readiness_reason) {
        (Some(_), _) => Span::styled("away", BAD),
        (None, "") => Span::styled("ready", Style::new().fg(Color::Green)),
        (None, reason) => Span::styled(
            format!("{}: {reason}", seen.readiness.replace('_', " ")),
            Style::new().fg(Color::Yellow),
        ),
    };
    let up = (seen.now - seen.started).max(0.0) as u64;
    let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
    let paused = if screen.paused { "  paused" } else { "" };
    Line::from(vec![
        Span::styled("afterglow ", STRONG),
        Span::raw(format!("{}  ", screen.address)),
        state,
        Span::styled(
            format!("  {}  up {hours}:{minutes:02}:{seconds:02}{paused}", seen.version),
            QUIET,
        ),
    ])
}

fn tab_line(chosen: View) -> Line<'static> {
    let tabs = View::ALL.into_iter().enumerate().map(|(n, view)| {
        let text = format!(" {} {} ", n + 1, view.word());
        match view == chosen {
            true => Span::styled(text, Style::new().add_modifier(Modifier::REVERSED)),
            false => Span::styled(text, QUIET),
        }
    });
    Line::from(tabs.collect::<Vec<_>>())
}

fn foot_line(screen: &Screen, scrolls: bool) -> Line<'static> {
    match &screen.away {
        Some((since, why)) => {
            let seconds = since.elapsed().unwrap_or_default().as_secs();
            Line::styled(format!("away for {seconds} s: {why}"), BAD)
        }
        None if scrolls => {
            Line::styled("1-5, Tab view   Up, Down scroll   p pause   q quit", QUIET)
        }
        None => Line::styled("1-5, Tab view   p pause   q quit", QUIET),
    }
}

fn overview(screen: &Screen, frame: &mut Frame<'_>, area: Rect) {
    let (database, ring) = (database_facts(screen), ring_facts(screen));
    let lines = |facts: &Option<Vec<_>>| facts.as_ref().map_or(0, |facts| facts.len() as u16 + 2);
    let of_now = now_facts(screen);
    let [top, curve, gauges, more, last] = Layout::vertical([
        Constraint::Length(of_now.len() as u16 + 2),
        Constraint::Min(3),
        Constraint::Length(6),
        Constraint::Length(lines(&database)),
        Constraint::Length(lines(&ring)),
    ])
    .areas(area);
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(top);
    frame.render_widget(facts("now", &of_now), left);
    let step = screen.step();
    let all: BTreeMap<_, _> = screen.all().requests_by_kind().into_iter().collect();
    let now: BTreeMap<_, _> = step.requests_by_kind().into_iter().collect();
    frame.render_widget(counts("requests", &all, &now, step.seconds()), right);
    let rates: Vec<u64> = screen.rates.iter().copied().collect();
    let width = usize::from(curve.width.saturating_sub(2));
    let sparkline = Sparkline::default()
        .block(Block::bordered().title("requests a second"))
        .data(rates[rates.len().saturating_sub(width)..].iter().copied())
        .style(Style::new().fg(Color::Blue));
    frame.render_widget(sparkline, curve);
    occupancy(screen, frame, gauges);
    if let Some(database) = database {
        frame.render_widget(facts("database and lease", &database), more);
    }
    if let Some(ring) = ring {
        frame.render_widget(facts("ring", &ring), last);
    }
}

fn now_facts(screen: &Screen) -> Vec<(&'static str, String)> {
    let step = screen.step();
    let (reads, written, seconds) = (step.reads(), step.written(), step.seconds());
    let latency = step.read_latency();
    let at = |part| micros(percentile(&latency, part));
    let seen = &screen.now.overview;
    let in_flight: u64 = seen.front_ends.iter().map(|one| one.flash_reads_in_flight).sum();
    let waiting = seen.cache.as_ref().map_or(0, |cache| cache.flash.chunks_waiting);
    let open: u64 = seen.front_ends.iter().map(|one| one.connections_open).sum();
    let mut facts = vec![
        ("hit ratio", percent(reads.part(reads.hits()))),
        ("  from DRAM", percent(reads.part(reads.dram))),
        ("  from flash", percent(reads.part(reads.flash))),
        ("requests", format!("{}/s", short(step.requests() as f64 / seconds))),
        ("read p50, p99, p99.9", format!("{}, {}, {}", at(0.5), at(0.99), at(0.999))),
        ("flash writes", format!("{}/s", bytes(written.total as f64 / seconds))),
        (
            "write amplification",
            written.amplification.map_or_else(|| "-".into(), |times| format!("{times:.2}")),
        ),
        ("device queue", format!("{in_flight} reads, {waiting} writes")),
        ("connections", open.to_string()),
    ];
    if seen.ring.is_some() {
        facts.insert(3, ("  from the ring", percent(reads.part(reads.ring))));
    }
    facts
}

fn occupancy(screen: &Screen, frame: &mut Frame<'_>, area: Rect) {
    let block = Block::bordered().title("in use");
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let Some(cache) = &screen.now.overview.cache else { return };
    let (dram, flash, index) = (&cache.dram, &cache.flash, &cache.index);
    let used = (flash.segments - flash.segments_free.min(flash.segments)) * flash.segment_bytes;
    let rows = [
        ("DRAM", dram.used_bytes, dram.capacity_bytes, true),
        ("flash", used, flash.segments * flash.segment_bytes, true),
        ("index", index.slots_used, index.slots, false),
        ("journal", cache.journal.entries_used, cache.journal.entries, false),
    ];
    for (row, (name, used, all, is_bytes)) in inside.rows().zip(rows) {
        let [label, bar] =
            Layout::horizontal([Constraint::Length(9), Constraint::Min(10)]).areas(row);
        let part = used as f64 / all.max(1) as f64;
        let told = match is_bytes {
            true => format!("{} of {}", bytes(used as f64), bytes(all as f64)),
            false => format!("{} of {}", short(used as f64), short(all as f64)),
        };
        frame.render_widget(name, label);
        let gauge = Gauge::default()
            .ratio(part.clamp(0.0, 1.0))
            .label(format!("{told}, {}", percent(Some(part))))
            .gauge_style(Style::new().fg(Color::Blue));
        frame.render_widget(gauge, bar);
    }
}

fn database_facts(screen: &Screen) -> Option<Vec<(&'static str, String)>> {
    let database = screen.now.overview.database.as_ref()?;
    let lease = screen.now.overview.lease.as_ref();
    Some(vec![
        (
            "connections",
            format!("{} ready, {} being made", database.connections_ready, database.connecting),
        ),
        (
            "requests",
            format!(
                "{} sent, {} wait, {} without answer",
                database.requests, database.in_flight, database.unanswered
            ),
        ),
        ("lost connections", database.failures.values().sum::<u64>().to_string()),
        ("lease", lease.map_or_else(|| "-".into(), |lease| lease.state.replace('_', " "))),
    ])
}

fn ring_facts(screen: &Screen) -> Option<Vec<(&'static str, String)>> {
    let ring = screen.now.overview.ring.as_ref()?;
    let trouble = |count, what| match count {
        0 => String::new(),
        count => format!(", {what} {count}"),
    };
    let away = trouble(ring.unlinked(), "no link to");
    let drifting = trouble(ring.drifting(), "other clocks at");
    Some(vec![
        ("members", format!("{}{away}{drifting}", ring.members.len())),
        ("shards", format!("{} of {} here, {} nobody's", ring.owned(), ring.shards, ring.unowned)),
        match ring.left {
            true => ("left", "restart it to have it join again".to_owned()),
            false => ("may serve for", format!("{:.1} s", ring.lease_seconds)),
        },
    ])
}

fn latency(screen: &Screen, frame: &mut Frame<'_>, area: Rect) {
    let step = screen.step();
    let rows = step.latencies().into_iter().map(|(name, figures)| {
        let at = |part| micros(percentile(&figures, part));
        let rate = short(figures.count as f64 / step.seconds());
        Row::new([name, format!("{rate}/s"), at(0.5), at(0.9), at(0.99), at(0.999)])
    });
    let widths = [30, 12, 11, 11, 11, 11].map(Constraint::Length);
    let head = ["path", "requests", "p50", "p90", "p99", "p99.9"];
    let table = Table::new(rows, widths)
        .header(Row::new(head).style(QUIET))
        .block(Block::bordered().title("latency, at most a quarter too high"));
    frame.render_widget(table, area);
}

/// What a list of reasons counts.
type ReasonCounts = fn(&Interval<'_>) -> ByWord;

fn reasons(screen: &Screen, frame: &mut Frame<'_>, area: Rect) {
    let halves: [Rect; 2] =
        Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
    let cells = halves.map(|half| {
        Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas::<2>(half)
    });
    let step = screen.step();
    let lists: [(&str, ReasonCounts, Rect); 4] = [
        ("misses", |step| step.by_word(|one| &one.misses), cells[0][0]),
        ("dropped from flash", |step| step.flash_dropped(), cells[0][1]),
        ("dropped out of DRAM", |step| step.of_namespaces(|one| &one.dropped), cells[1][0]),
        ("past the cache", |step| step.by_word(|one| &one.passes), cells[1][1]),
    ];
    for (title, of, place) in lists {
        frame.render_widget(counts(title, &of(&screen.all()), &of(&step), step.seconds()), place);
    }
}

fn segments(screen: &Screen, frame: &mut Frame<'_>, area: Rect) -> u16 {
    let Some(map) = &screen.now.segments else {
        frame.render_widget(Block::bordered().title("segments"), area);
        return 0;
    };
    let [legend, cells] = Layout::vertical([Constraint::Length(9), Constraint::Min(3)]).areas(area);
    let states: Vec<usize> =
        map.states.bytes().map(|digit| usize::from(digit.saturating_sub(b'0'))).collect();
    let rows = map.words.iter().enumerate().map(|(n, word)| {
        let count = states.iter().filter(|state| **state == n).count();
        let size = bytes(count as f64 * map.segment_bytes as f64);
        let (mark, style) = mark(word, 0);
        let mark = if word == "sealed" { "0-9".to_owned() } else { mark.to_string() };
        Row::new([mark, word.clone(), count.to_string(), size]).style(style)
    });
    let widths = [5, 12, 12, 12].map(Constraint::Length);
    let title = "segments (sealed: tenths of its records that are alive)";
    frame.render_widget(Table::new(rows, widths).block(Block::bordered().title(title)), legend);
    let marks = states.iter().zip(&map.live_percent).map(|(state, live)| {
        let word = map.words.get(*state).map_or("", String::as_str);
        let (mark, style) = mark(word, *live);
        Span::styled(mark.to_string(), style)
    });
    let block = Block::bordered();
    let width = usize::from(block.inner(cells).width).max(1);
    let marks: Vec<Span<'_>> = marks.collect();
    let lines = marks.chunks(width).map(|row| Line::from(row.to_vec())).collect();
    scrolled(lines, block, screen.scroll, frame, cells)
}

/// Draws lines from the one that is scrolled to, cut at the edge, and says how many can be scrolled
/// away.
fn scrolled(
    lines: Vec<Line<'_>>,
    block: Block<'_>,
    scroll: u16,
    frame: &mut Frame<'_>,
    area: Rect,
) -> u16 {
    let beyond = lines.len().saturating_sub(usize::from(block.inner(area).height));
    let beyond = u16::try_from(beyond).unwrap_or(u16::MAX);
    frame.render_widget(Paragraph::new(lines).block(block).scroll((scroll.min(beyond), 0)), area);
    beyond
}

/// The letter of a segment, and its colour.
fn mark(state: &str, live: u8) -> (char, Style) {
    let colored = |color| Style::new().fg(color);
    match state {
        "open" => ('o', colored(Color::Magenta)),
        "sealing" => ('s', colored(Color::Magenta)),
        "sealed" => (char::from(b'0' + live.min(99) / 10), colored(Color::Cyan)),
        "reclaiming" => ('r', colored(Color::Yellow)),
        "retired" => ('x', BAD),
        "checkpoint" => ('c', colored(Color::Blue)),
        _ => ('.', QUIET),
    }
}

fn hot_keys(screen: &Screen, frame: &mut Frame<'_>, area: Rect) -> u16 {
    let block = Block::bordered().title("hottest of the last minutes, estimated");
    let Some(hot) = &screen.now.hot_keys else {
        frame.render_widget(block, area);
        return 0;
    };
    let width = usize::from(block.inner(area).width).max(20);
    let mut lines = Vec::new();
    for front_end in &hot.front_ends {
        let rate = short(front_end.per_second);
        lines.push(Line::styled(format!("{}: about {rate} keys/s", front_end.name), STRONG));
        let lists = [
            ("tables", &front_end.tables),
            ("prefixes", &front_end.prefixes),
            ("keys", &front_end.keys),
        ];
        for (what, entries) in lists.into_iter().filter(|(_, entries)| !entries.is_empty()) {
            lines.push(Line::styled(format!("  {what}"), QUIET));
            lines.extend(entries.iter().take(10).flat_map(|entry| hot_lines(entry, width)));
        }
    }
    if !hot.keys_shown {
        let told = "names are hidden: start the server with --show-keys to see them";
        lines.push(Line::styled(told, QUIET));
    }
    scrolled(lines, block, screen.scroll, frame, area)
}

/// An entry on as many lines as its name needs.
fn hot_lines(entry: &HotEntry, width: usize) -> Vec<Line<'static>> {
    let name = entry.name.as_deref().unwrap_or("(hidden)");
    let (part, rate) = (percent(Some(entry.part)), short(entry.per_second));
    let mut lines = vec![(String::new(), 0)];
    for character in format!("  {part:>8} {rate:>8}/s  {name}").chars() {
        // Some take two cells of the terminal, some none.
        let cells = Span::raw(character.to_string()).width();
        let last = lines.len() - 1;
        match lines[last].1 + cells > width {
            true => lines.push((character.to_string(), cells)),
            false => {
                lines[last].0.push(character);
                lines[last].1 += cells;
            }
        }
    }
    lines.into_iter().map(|(text, _)| Line::raw(text)).collect()
}

/// Names and values below each other.
fn facts(title: &'static str, all: &[(&'static str, String)]) -> Table<'static> {
    let rows = all.iter().map(|(name, value)| Row::new([(*name).to_owned(), value.clone()]));
    let widths = [Constraint::Length(21), Constraint::Min(10)];
    Table::new(rows, widths).block(Block::bordered().title(title))
}

/// Counts by word, in all and a second; what never happened is left out.
fn counts(title: &str, all: &ByWord, now: &ByWord, seconds: f64) -> Table<'static> {
    let mut sorted: Vec<(&String, u64)> =
        all.iter().map(|(word, n)| (word, *n)).filter(|(_, n)| *n > 0).collect();
    sorted.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let rows = sorted.into_iter().map(|(word, n)| {
        let rate = now.get(word).copied().unwrap_or(0) as f64 / seconds;
        Row::new([word.replace('_', " "), n.to_string(), format!("{}/s", short(rate))])
    });
    let widths = [Constraint::Min(18), Constraint::Length(13), Constraint::Length(11)];
    Table::new(rows, widths)
        .header(Row::new(["", "in all", "now"]).style(QUIET))
        .block(Block::bordered().title(title.to_owned()))
}
