//! How devices and memory are divided.

use crate::config::Config;
use crate::device::DeviceInfo;
use crate::error::OpenError;
use crate::format::block_lines::block_lines;
use crate::format::checkpoint::{BLOCK_HEADER, Header, SEGMENT_ENTRY, area_len, stride};
use crate::format::superblock::Superblock;
use crate::format::{BLOCK, round_up};
use crate::index::{LINE_BYTES, MAX_GROUP, MAX_SEGMENTS};
use crate::tier::LEAST_BYTES;

/// Largest segment.
const MAX_SEGMENT: u64 = crate::format::MAX_SEGMENT as u64;
/// Smallest segment; the simulation's are smaller, so that more happens in less time.
const MIN_SEGMENT: u64 = if cfg!(test) { 16 << 10 } else { 64 << 10 };
/// The least number of chunks that may wait for the device. Two are for the background copy, the
/// rest for what a few simultaneous puts then evict from DRAM.
const MIN_CHUNKS: u64 = 6;
/// Writes in flight to each of several devices.
pub const FEW_IN_FLIGHT: u32 = 2;
/// Segments a cache should have at least.
const MANY: u64 = 256;
/// Segments a cache must have.
const FEW: u32 = 8;
/// Segments a cache may have. The last that a slot could name stands for no place at all
/// ([`NOWHERE`](crate::tier::NOWHERE)).
pub const MOST_SEGMENTS: u32 = MAX_SEGMENTS - 1;
/// One 64th of the flash may be index: one slot for 512 bytes.
const INDEX_SHARE: u64 = 64;

/// How memory is divided, in bytes unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Index lines of each shard that it is made with.
    pub lines: usize,
    /// Lines it has from the start: more where it had grown before.
    pub lines_now: usize,
    /// Lines it may grow to: half of the DRAM tier's memory besides.
    pub most_lines: usize,
    /// DRAM tier of each shard.
    pub dram: usize,
    /// Objects each shard's sketch is made for.
    pub sketch: usize,
    /// Closed chunks that may wait for the device.
    pub chunks: u32,
}

impl Memory {
    /// The same for a cache of `shards` shards whose index has grown to what a checkpoint has: the
    /// DRAM tier has less.
    pub fn grown_to(self, shards: u32, header: &Header) -> Self {
        let lines = match header.shards == shards && header.base == self.lines as u64 {
            true => (header.lines as usize).clamp(self.lines, self.most_lines),
            // It is rebuilt, and grows as it must.
            false => self.lines,
        };
        let more = (lines - self.lines) * LINE_BYTES;
        Self { lines_now: lines, dram: self.dram - more, ..self }
    }
}

fn segment_size(config: &Config, flash: u64) -> Result<u32, OpenError> {
    let size = match config.segment_size {
        Some(size) => u64::from(size),
        None => {
            let most = (flash / MANY).max(MIN_SEGMENT);
            (1 << most.ilog2()).min(MAX_SEGMENT)
        }
    };
    if !size.is_power_of_two() || !(MIN_SEGMENT..=MAX_SEGMENT).contains(&size) {
        let why = format!(
            "segment size {size}: choose a power of two from {MIN_SEGMENT} to {MAX_SEGMENT}"
        );
        return Err(OpenError::Config(why));
    }
    Ok(size as u32)
}

/// Divides new devices.
pub fn format(
    config: &Config,
    infos: &[DeviceInfo],
    uuid: [u8; 16],
    hash_seed: u64,
    set_epoch: u64,
) -> Result<Vec<Superblock>, OpenError> {
    let flash: u64 = infos.iter().map(|i| i.size).sum();
    let segment_size = segment_size(config, flash)?;
    let index = index_cap(config, flash);
    let tables = tables_cap(config, flash, segment_size);
    let lines = (index / 64 / u64::from(config.shards)).max(1);
    let area = area_len(config.shards, lines, tables);
    let homes = homes(config, infos, area);
    let mut blocks = Vec::new();
    for (n, info) in infos.iter().enumerate() {
        let mut block = Superblock {
            uuid,
            device: n as u32,
            devices: infos.len() as u32,
            set_epoch,
            size: info.size,
            segment_size,
            segments: 0,
            area: if homes.contains(&n) { area } else { 0 },
            hash_seed,
        };
        let room = info.size.saturating_sub(round_up(block.first_segment(), BLOCK.into()));
        block.segments = (room / u64::from(segment_size)).min(u64::from(MAX_SEGMENTS)) as u32;
        blocks.push(block);
    }
    let segments: u32 = blocks.iter().map(|b| b.segments).sum();
    if segments < FEW {
        let why = format!(
            "{flash} bytes of flash make {segments} segments of {segment_size} bytes, at least {FEW} are needed: configure \
             more flash or smaller segments"
        );
        return Err(OpenError::Config(why));
    }
    if segments > MOST_SEGMENTS {
        let what = if u64::from(segment_size) < MAX_SEGMENT {
            "larger segments"
        } else {
            "less flash, or several caches"
        };
        let why = format!(
            "{segments} segments of {segment_size} bytes are more than a cache can name ({MOST_SEGMENTS}): configure {what}"
        );
        return Err(OpenError::Config(why));
    }
    // What is written beyond a device's end is lost, and its superblock is nobody's from then on.
    if blocks.iter().any(|block| block.area > 0 && block.first_segment() > block.size) {
        let why = format!(
            "no device is large enough for the checkpoints of {flash} bytes of flash, which take {} bytes of one: configure a \
             larger device, or several caches",
            2 * area
        );
        return Err(OpenError::Config(why));
    }
    Ok(blocks)
}

/// Of a home's device, this share may be areas; that of a lone one in any case.
const AREAS_SHARE: u64 = 4;

/// The devices that checkpoints lie on: the first whose areas leave most of it, and the largest of
/// the others of which that is true. Where it is true of none, the largest device alone.
fn homes(config: &Config, infos: &[DeviceInfo], area: u64) -> Vec<usize> {
    let largest = |among: &mut dyn Iterator<Item = usize>| {
        among.max_by_key(|&n| (infos[n].size, std::cmp::Reverse(n)))
    };
    let mut able = (0..infos.len()).filter(|&n| may_be_home(&infos[n], area));
    let first = able.next();
    let second = largest(&mut able.filter(|_| has_second_home(config)));
    match first {
        Some(_) => first.into_iter().chain(second).collect(),
        None => largest(&mut (0..infos.len())).into_iter().collect(),
    }
}

/// Whether areas of so many bytes leave most of a device.
pub fn may_be_home(info: &DeviceInfo, area: u64) -> bool {
    area * 2 * AREAS_SHARE <= info.size
}

#[cfg(not(test))]
fn has_second_home(_: &Config) -> bool {
    true
}

/// Caches of the simulation that begin as those of format 1 have one home.
#[cfg(test)]
fn has_second_home(config: &Config) -> bool {
    config.fixed_lives == 0
}

/// Most bytes of index a cache of that much flash may have: what its checkpoint areas were made
/// for.
fn index_cap(config: &Config, flash: u64) -> u64 {
    let usual = round_up((flash / INDEX_SHARE).max(32 << 10), 4096);
    if has_small_areas(config) { SMALL_INDEX } else { usual }
}

/// Most bytes of tables a checkpoint of a cache of that much flash may have.
fn tables_cap(config: &Config, flash: u64, segment_size: u32) -> u64 {
    let kills = (flash / INDEX_SHARE).clamp(32 << 10, 32 << 20);
    let kills = if has_small_areas(config) { u64::from(BLOCK) } else { kills };
    kills + flash / u64::from(segment_size) * SEGMENT_ENTRY as u64
}

/// Bytes of index that the small areas of the simulation are made for: eight lines.
const SMALL_INDEX: u64 = 8 * LINE_BYTES as u64;

#[cfg(not(test))]
fn has_small_areas(_: &Config) -> bool {
    false
}

/// Runs of the simulation whose checkpoints soon need segments besides.
#[cfg(test)]
fn has_small_areas(config: &Config) -> bool {
    config.small_areas
}

/// Segments that reclaim keeps free: what may be written while it frees the next one, which takes
/// it some milliseconds.
pub fn free_target(segments: u32) -> u32 {
    (segments / 128).clamp(3, 64)
}

/// Divides memory so that checkpoints fit their areas, of so many bytes, and says how many bytes
/// their tables may have. Refuses a number of shards with which they never would fit.
pub fn check_area(
    config: &Config,
    flash: u64,
    memory: &Memory,
    (segment_size, area): (u32, u64),
) -> Result<(Memory, u64), OpenError> {
    let fits = |lines: usize, tables: u64| area_len(config.shards, lines as u64, tables) <= area;
    let tables = tables_cap(config, flash, segment_size);
    if fits(memory.lines, tables) {
        return Ok((*memory, tables));
    }
    // Devices may have joined since the areas were made. Tables have half of an area, or what their
    // segments need, and the index begins as large as it may.
    let segments = flash / u64::from(segment_size) * SEGMENT_ENTRY as u64;
    let tables = tables.min((area / 2).max(segments + (32 << 10)));
    let fits = |lines: usize| fits(lines, tables);
    if fits(memory.lines) {
        return Ok((*memory, tables));
    }
    let (mut least, mut most) = (0, memory.lines);
    while least < most {
        let lines = (least + most).div_ceil(2);
        (least, most) = if fits(lines) { (lines, most) } else { (least, lines - 1) };
    }
    if least > 0 && config.index_memory.is_none() {
        return Ok((Memory { lines: least, lines_now: least, ..*memory }, tables));
    }
    let why = format!(
        "{} shards are more than the checkpoint areas of this cache were made for: configure as many as when it was created, or \
         less index_memory, or delete its files to start with an empty cache",
        config.shards
    );
    Err(OpenError::Config(why))
}

/// Divides memory.
pub fn memory(config: &Config, flash: u64, segment_size: u32) -> Result<Memory, OpenError> {
    let shards = u64::from(config.shards);
    if !config.shards.is_power_of_two() || config.shards > 1 << 12 {
        let why = format!("{} shards: choose a power of two up to 4096", config.shards);
        return Err(OpenError::Config(why));
    }
    let wanted = config.index_memory.unwrap_or((flash / 115).min(config.memory / 4));
    let index = wanted.min(index_cap(config, flash)).max(64 * shards);
    let chunk = u64::from(segment_size / 4).min(1 << 20);
    // Open chunks of the streams, closed ones on their way, footers and what checkpoints and
    // loading hold.
    let chunks = (config.memory / 16 / chunk).clamp(MIN_CHUNKS, 64);
    // A device that does not answer keeps what it has in flight.
    let kept = config.devices.len().saturating_sub(1) as u64 * u64::from(FEW_IN_FLIGHT);
    let buffers = (chunks + 3 + 2 + kept) * chunk;
    // What open segments remember of their records, footers on their way, and the process itself.
    let rest = u64::from(segment_size).min(config.memory / 16);
    // Four bytes for each object the DRAM tier could hold, or for those on flash if these are more:
    // admission asks whether an object was known while flash was written over once.
    let sketch = (config.memory / 64).max((index / 2).min(config.memory / 16));
    let fixed = index + buffers + sketch + rest;
    let least = shards * LEAST_BYTES as u64;
    let Some(dram) = config.memory.checked_sub(fixed).filter(|dram| *dram >= least) else {
        let why = format!(
            "{} bytes of memory are too few: index, buffers and sketch take {fixed} bytes, and {shards} shards need {least} bytes \
             for objects; configure more memory, fewer shards or less index_memory",
            config.memory
        );
        return Err(OpenError::Config(why));
    };
    let lines = (index / LINE_BYTES as u64 / shards).max(1) as usize;
    let dram = (dram / shards) as usize;
    let most_lines = match config.index_growth {
        false => lines,
        true => most_lines(lines, dram, segment_size),
    };
    Ok(Memory {
        lines,
        lines_now: lines,
        most_lines,
        dram,
        sketch: (sketch / 4 / shards) as usize,
        chunks: chunks as u32,
    })
}

/// Lines that a shard of `lines` lines and `dram` bytes of DRAM tier may grow to. A block of its
/// checkpoint must fit a segment.
fn most_lines(lines: usize, dram: usize, segment_size: u32) -> usize {
    let most = (lines + dram / 2 / LINE_BYTES).min(lines * MAX_GROUP);
    match u64::from(segment_size) >= stride(block_lines()) {
        true => most,
        false => most.min((segment_size as usize - BLOCK_HEADER) / LINE_BYTES).max(lines),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::superblock::Found;

    fn info(size: u64) -> DeviceInfo {
        DeviceInfo { size, alignment: 512, path: "flash".into() }
    }

    #[test]
    fn devices_from_a_mebibyte_to_terabytes_are_divided_without_overlap() {
        for size in [2 << 20, 64 << 20, 4 << 30, 1 << 40] {
            let config = Config { memory: 4 << 30, ..Config::new("x", vec![]) };
            let block = format(&config, &[info(size)], [0; 16], 0, 1).unwrap()[0];
            let end =
                block.first_segment() + u64::from(block.segments) * u64::from(block.segment_size);
            assert!(end <= size && end + u64::from(block.segment_size) > size);
            assert!(block.area * 2 < size / 8, "{size}: areas of {}", block.area);
            let memory = memory(&config, size, block.segment_size).unwrap();
            let need = area_len(config.shards, memory.lines as u64, 32 << 10);
            assert!(need <= block.area, "{size}: {need} > {}", block.area);
        }
    }

    #[test]
    fn devices_that_join_leave_the_index_most_of_what_it_had() {
        for size in [48 << 20, 1 << 30, 100 << 30] {
            let config = Config { memory: 8 << 30, shards: 16, ..Config::new("x", vec![]) };
            let block = format(&config, &[info(size)], [0; 16], 0, 1).unwrap()[0];
            let with = |flash: u64| {
                let memory = memory(&config, flash, block.segment_size).unwrap();
                let place = (block.segment_size, block.area);
                check_area(&config, flash, &memory, place).expect("it is opened")
            };
            let before = with(size).0.lines;
            for joined in [2, 4] {
                let (memory, tables) = with(joined * size);
                let need = area_len(config.shards, memory.lines as u64, tables);
                assert!(need <= block.area, "{size} times {joined}: {need} > {}", block.area);
                assert!(memory.lines * 10 >= before * 9, "{} after {before}", memory.lines);
            }
        }
    }

    /// Bytes of each device, and which of them are to have areas.
    fn homes_among(sizes: &[u64]) -> Result<Vec<usize>, OpenError> {
        let config = Config { memory: 4 << 30, ..Config::new("x", vec![]) };
        let infos: Vec<_> = sizes.iter().map(|&size| info(size)).collect();
        let blocks = format(&config, &infos, [7; 16], 0, 1)?;
        for block in &blocks {
            let written = Superblock::decode(&block.encode());
            assert_eq!(written, Found::Ours(*block), "{sizes:?} are opened once and never again");
        }
        Ok((0..blocks.len()).filter(|&n| blocks[n].area > 0).collect())
    }

    #[test]
    fn checkpoints_lie_where_there_is_room_for_them() {
        const GIB: u64 = 1 << 30;
        for (sizes, homes) in [
            (&[64 * GIB, 64 * GIB][..], &[0, 1][..]),
            (&[GIB, 64 * GIB], &[1]),
            (&[10 * GIB, 1024 * GIB], &[1]),
            (&[GIB, 64 * GIB, 64 * GIB], &[1, 2]),
            (&[64 * GIB, GIB, 32 * GIB], &[0, 2]),
            // Of many like ones none has areas without a loss.
            (&[GIB; 16], &[0]),
            (&[GIB, GIB, 2 * GIB, GIB, GIB, GIB, GIB, GIB, GIB, GIB], &[2]),
        ] {
            assert_eq!(homes_among(sizes).expect("divided"), homes, "{sizes:?}");
        }
    }

    #[test]
    fn where_no_device_has_room_for_checkpoints_it_is_refused() {
        let refused = homes_among(&[1 << 30; 40]).expect_err("40 areas of a device each");
        assert!(refused.to_string().contains("checkpoints"), "{refused}");
    }

    #[test]
    fn what_cannot_work_is_refused_with_a_reason() {
        let config = Config::new("x", vec![]);
        assert!(matches!(
            format(&config, &[info(1 << 18)], [0; 16], 0, 1),
            Err(OpenError::Config(_))
        ));
        let config = Config { memory: 1 << 20, ..config };
        assert!(matches!(memory(&config, 1 << 30, 1 << 20), Err(OpenError::Config(_))));
    }
}
