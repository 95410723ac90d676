//! The commands that ask for dumps.

use crate::dump::{Dump, Form};
use crate::limits::CLASS;
use crate::line::{BAD_FORMAT, Line, answer};
use crate::number;
use crate::request::Request;
use crate::tokens::Tokens;

/// memcached has this many classes at most.
const CLASSES: u32 = 64;

/// `lru_crawler metadump|mgdump CLASSES|all|hash`
pub fn crawl<'a>(words: &Tokens<'a>) -> Option<Line<'a>> {
    let form = match words.get(1) {
        b"metadump" => Form::Metadata,
        b"mgdump" => Form::Keys,
        _ => return None,
    };
    let mut is_named = matches!(words.get(2), b"all" | b"hash");
    if !is_named {
        for class in words.get(2).split(|byte| *byte == b',').filter(|class| !class.is_empty()) {
            match number::unsigned_32(class) {
                Some(class @ 1..CLASSES) => is_named |= class == CLASS,
                _ => return Some(Line::Whole(answer("BADCLASS invalid class id\r\n"))),
            }
        }
    }
    Some(Line::Whole(Request::Dump(Dump { form, is_named })))
}

/// `stats cachedump CLASS LIMIT`
pub fn cached<'a>(words: &Tokens<'a>) -> Line<'a> {
    if words.len() < 4 {
        return Line::Whole(answer("CLIENT_ERROR bad command line\r\n"));
    }
    let numbers = number::unsigned_32(words.get(2)).zip(number::unsigned_32(words.get(3)));
    let Some((class, limit)) = numbers else { return Line::Whole(answer(BAD_FORMAT)) };
    if class >= CLASSES {
        return Line::Whole(answer("CLIENT_ERROR Illegal slab id\r\n"));
    }
    let dump = Dump { form: Form::Cached { limit }, is_named: class == CLASS };
    Line::Whole(Request::Dump(dump))
}
