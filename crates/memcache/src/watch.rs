//! The command `watch`.

use crate::line::{Line, answer};
use crate::request::Request;
use crate::tokens::Tokens;
use crate::topics::Topics;

/// `watch [TOPIC]...`; `None` when a word is no topic.
pub fn parse<'a>(words: &Tokens<'a>) -> Option<Line<'a>> {
    if words.len() == 1 {
        return Some(Line::Whole(Request::Watch(Topics::FETCHERS)));
    }
    let mut topics = Topics::default();
    for word in words.from(1) {
        match Topics::named(word) {
            Some(topic) => topics = topics.with(topic),
            // With `noreply` memcached says nothing of the word that it does not know.
            None if words.last() == b"noreply" => return Some(Line::Whole(answer(""))),
            None => return None,
        }
    }
    Some(Line::Whole(Request::Watch(topics)))
}
