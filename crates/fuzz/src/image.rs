//! A whole small cache, as its files are, with some of its bytes changed.
//!
//! Input: `flags`, then changes `region | offset u16 | n | n bytes` until the input ends. A region
//! is one structure of the files, so that few bytes reach every structure. Flags:
//!
//! - bit 0 corrects all checksums afterwards;
//! - bit 1 takes the image of a killed process instead of a cleanly stopped one;
//! - bit 2 makes it an image of this boot;
//! - bit 3 ends the file of the last change where that change ends;
//! - bit 4 takes an image of format 1.

use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::LazyLock;

use afterglow_engine::device::area::boot_id;
use afterglow_engine::format::checkpoint::{BLOCK_LINES, BlockPlace, Header, stride};
use afterglow_engine::format::record::RecordContext;
use afterglow_engine::format::state::StateFile;
use afterglow_engine::format::superblock::{Found, RESERVED, Superblock};
use afterglow_engine::format::{BLOCK, footer, journal};

use crate::seal;

/// The files of a cache, in the order in which they are kept here.
pub const FILES: [&str; 3] = ["flash", "journal", "state"];
const FLASH: usize = 0;
const JOURNAL: usize = 1;
const STATE: usize = 2;

const SEAL: u8 = 1;
const KILLED: u8 = 2;
const THIS_BOOT: u8 = 4;
const CUT: u8 = 8;
const FORMAT_1: u8 = 16;

/// The content of all files.
#[derive(Debug, Clone)]
pub struct Image {
    files: [Vec<u8>; 3],
    /// Structures, by file.
    regions: Vec<(usize, Range<usize>)>,
    block: Superblock,
    state: StateFile,
}

/// What an input made of the image.
#[derive(Debug)]
pub struct Changed {
    /// The files.
    pub image: Image,
    /// Checksums were put right: it may hold anything.
    pub sealed: bool,
    /// Journal or state file were changed: removals may be forgotten.
    pub forgetful: bool,
}

/// The image of a format (`1`) after a clean stop or a kill.
macro_rules! image {
    ($which:literal) => {
        LazyLock::new(|| {
            Image::load([
                include_bytes!(concat!("../../engine/tests/format_fixtures/", $which, "/flash.xz")),
                include_bytes!(concat!(
                    "../../engine/tests/format_fixtures/",
                    $which,
                    "/journal.xz"
                )),
                include_bytes!(concat!("../../engine/tests/format_fixtures/", $which, "/state.xz")),
            ])
        })
    };
}

static IMAGES: [LazyLock<Image>; 4] =
    [image!("2/clean"), image!("2/killed"), image!("1/clean"), image!("1/killed")];

/// The image that an input describes.
#[must_use]
pub fn changed(data: &[u8]) -> Changed {
    let (flags, mut rest) = data.split_first().map_or((0, data), |(flags, rest)| (*flags, rest));
    let which = usize::from(flags & FORMAT_1 != 0) * 2 + usize::from(flags & KILLED != 0);
    let mut image = IMAGES[which].clone();
    if flags & THIS_BOOT != 0 {
        image.state.boot_id = boot_id().map_or([0; 16], |id| id.0);
        image.files[STATE] = image.state.encode();
    }
    let (mut forgetful, mut end) = (false, None);
    while let [region, low, high, n, bytes @ ..] = rest {
        let (file, range) = image.regions[usize::from(*region) % image.regions.len()].clone();
        let offset = usize::from(u16::from_le_bytes([*low, *high])) % range.len();
        let n = usize::from(*n).min(bytes.len());
        let at = range.start + offset;
        let n_fits = n.min(image.files[file].len() - at);
        image.files[file][at..at + n_fits].copy_from_slice(&bytes[..n_fits]);
        forgetful |= file != FLASH;
        end = Some((file, at + n_fits));
        rest = &bytes[n..];
    }
    let sealed = flags & SEAL != 0;
    if sealed {
        image.seal();
    }
    if flags & CUT != 0
        && let Some((file, end)) = end
    {
        image.files[file].truncate(end);
    }
    Changed { image, sealed, forgetful }
}

/// One change, as bytes of an input.
fn change(region: u8, offset: u16, bytes: &[u8]) -> Vec<u8> {
    let [low, high] = offset.to_le_bytes();
    [&[region, low, high, bytes.len() as u8], bytes].concat()
}

/// Inputs: the images as they are, and each structure changed once.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = (0..32).map(|flags| vec![flags]).collect();
    let regions = IMAGES.iter().map(|image| image.regions.len()).max().unwrap_or_default();
    for region in 0..regions as u8 {
        let new = [THIS_BOOT, SEAL | THIS_BOOT, SEAL | KILLED | THIS_BOOT];
        for flags in new.into_iter().chain(new.map(|flags| flags | FORMAT_1)) {
            let offset = u16::from(region) * 7 % 61;
            seeds.push([vec![flags], change(region, offset, &[0xff; 4])].concat());
        }
    }
    seeds.push([vec![CUT], change(0, 500, &[1])].concat());
    seeds
}

impl Image {
    fn load(packed: [&[u8]; 3]) -> Self {
        let files = packed.map(|bytes| {
            let mut out = Vec::new();
            lzma_rust2::XzReader::new(bytes, false).read_to_end(&mut out).expect("a whole image");
            out
        });
        let Found::Ours(block) = Superblock::decode(&files[FLASH]) else {
            panic!("an image without superblock")
        };
        let state = StateFile::decode(&files[STATE]).expect("an image with a state file");
        let mut image = Self { files, regions: Vec::new(), block, state };
        image.regions = image.find_regions();
        image
    }

    /// Whether the superblock, as the files have it, is of a device of so many bytes.
    #[must_use]
    pub fn has_size(&self, bytes: u64) -> bool {
        let mut head = self.files[FLASH].clone();
        head.resize(head.len().max(RESERVED as usize), 0);
        matches!(Superblock::decode(&head), Found::Ours(block) if block.size == bytes)
    }

    /// Where each structure is that holds something.
    fn find_regions(&self) -> Vec<(usize, Range<usize>)> {
        let mut regions = vec![
            (FLASH, 0..96),
            (FLASH, 4096..4192),
            (STATE, 0..self.files[STATE].len()),
            (JOURNAL, 0..80),
            (JOURNAL, 4096..4096 + 64 * 32),
        ];
        for area in [0, 1].map(|which| self.block.area_at(which) as usize) {
            let Some(header) = self.header(area) else { continue };
            regions.push((FLASH, area..area + 112));
            for shard in 0..header.shards {
                let at = self.block_at(area, &header, shard, 0);
                regions.push((FLASH, at..at + stride(header.lines) as usize));
            }
            let at = area + header.tables_at() as usize;
            regions.push((FLASH, at..at + header.tables_len as usize));
        }
        for segment in 0..self.block.segments {
            let place = self.segment(segment);
            if self.files[FLASH][place.start..place.start + 8] != *b"aglowSEG" {
                continue;
            }
            regions.push((FLASH, place.start..place.start + 64));
            // Records; offsets of 16 bits reach the first 64 KiB.
            regions.push((FLASH, place.start + 64..place.end));
            regions.push((FLASH, place.end - 64..place.end));
            regions.push((FLASH, place.end - self.footer_len(segment)..place.end));
        }
        regions
    }

    fn header(&self, area: usize) -> Option<Header> {
        Header::decode(self.files[FLASH].get(area..)?, &self.block.uuid, self.block.area)
    }

    fn block_at(&self, area: usize, header: &Header, shard: u32, block: u64) -> usize {
        match header.block_at(shard, block, self.block.area, self.block.segment_size) {
            BlockPlace::Area(offset) => area + offset as usize,
            BlockPlace::Segment(..) => unreachable!("the index of the image has not grown"),
        }
    }

    fn segment(&self, segment: u32) -> Range<usize> {
        let size = self.block.segment_size as usize;
        let start = self.block.first_segment() as usize + segment as usize * size;
        start..start + size
    }

    /// Bytes of a segment's footer, as its trailer says, as far as they can be there.
    fn footer_len(&self, segment: u32) -> usize {
        let place = self.segment(segment);
        let len = seal::entries_len(&self.files[FLASH][place.end - 64..place.end]);
        footer::len_with(len.min(place.len() / 2)) as usize
    }

    /// Puts every checksum right, where the structures are that the unchanged image has.
    fn seal(&mut self) {
        seal::superblock(&mut self.files[FLASH]);
        seal::state(&mut self.files[STATE]);
        let seed = journal::seed(&self.state.uuid, self.state.journal_epoch);
        for entry in self.files[JOURNAL][4096..].chunks_exact_mut(32).filter(|entry| entry[22] != 0)
        {
            seal::journal_entry(entry, seed);
        }
        for which in [0, 1] {
            self.seal_checkpoint(self.block.area_at(which) as usize);
        }
        for segment in 0..self.block.segments {
            self.seal_segment(segment);
        }
    }

    fn seal_checkpoint(&mut self, area: usize) {
        let uuid = self.block.uuid;
        let flash = &mut self.files[FLASH];
        if flash[area..area + 8] == [0; 8] {
            return;
        }
        seal::checkpoint_header(&mut flash[area..area + BLOCK as usize], &uuid);
        let Some(header) = self.header(area) else { return };
        for shard in 0..header.shards {
            for block in 0..header.blocks_per_shard() {
                let at = self.block_at(area, &header, shard, block);
                let bytes = &mut self.files[FLASH][at..at + stride(header.lines) as usize];
                seal::block(bytes, &uuid, header.sequence, shard, block * BLOCK_LINES);
            }
        }
        let flash = &mut self.files[FLASH];
        let at = area + header.tables_at() as usize;
        let tables = flash[at..at + header.tables_len as usize].to_vec();
        let header_bytes = &mut flash[area..area + BLOCK as usize];
        seal::tables(header_bytes, &tables, &uuid, header.sequence);
        seal::checkpoint_header(header_bytes, &uuid);
    }

    fn seal_segment(&mut self, segment: u32) {
        let (uuid, hash_seed, place) =
            (self.block.uuid, self.block.hash_seed, self.segment(segment));
        let len = self.footer_len(segment);
        let size = place.len() as u32;
        let bytes = &mut self.files[FLASH][place];
        if bytes[..8] == [0; 8] {
            return;
        }
        seal::segment_header(bytes, &uuid, segment);
        let at = bytes.len() - len;
        if !seal::footer(&mut bytes[at..], &uuid, segment) {
            return;
        }
        let Some(found) = footer::decode_footer(&bytes[at..], &uuid, segment, size) else { return };
        let (generation, format) = (found.trailer.generation, found.trailer.records);
        for entry in found.entries {
            if let Some(record) = bytes[..at].get_mut(entry.offset as usize..) {
                let context = RecordContext::new(hash_seed, generation, entry.offset, format);
                seal::record(record, &context);
            }
        }
    }

    /// Makes the files in a directory.
    ///
    /// # Panics
    /// When it cannot.
    pub fn write_to(&self, dir: &Path) {
        for (name, bytes) in FILES.iter().zip(&self.files) {
            std::fs::write(dir.join(name), bytes).expect("a directory to write to");
        }
    }
}
