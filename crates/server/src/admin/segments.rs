//! `GET /api/v1/segments`: state and liveness of every segment. The answer is in columns, because a
//! cache of several TB has hundreds of thousands of segments.

use afterglow_engine::{SegmentFigures, SegmentState};
use serde::{Deserialize, Serialize};

/// The whole answer. Columns have one member for each segment, in the order of their numbers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SegmentMap {
    /// Bytes a segment.
    pub segment_bytes: u64,
    /// The words for states; a digit of [`SegmentMap::states`] is an index into them.
    pub words: Vec<String>,
    /// A digit a segment.
    pub states: String,
    /// Records in percent that the index still points at; 0 where it is free.
    pub live_percent: Vec<u8>,
    /// Bytes of its records in percent of a segment.
    pub filled_percent: Vec<u8>,
    /// The number of its device; empty where there is one device.
    pub devices: Vec<u16>,
}

impl SegmentMap {
    /// The map of these segments.
    pub fn new(segments: &[SegmentFigures], segment_bytes: u64) -> Self {
        let percent = |part: u64, whole: u64| match whole {
            0 => 0,
            whole => (part.min(whole) * 100).div_ceil(whole) as u8,
        };
        let digit = |state: SegmentState| char::from(b'0' + state as u8);
        let several = segments.iter().any(|segment| segment.device != segments[0].device);
        SegmentMap {
            segment_bytes,
            words: SegmentState::ALL.iter().map(|state| state.label().to_owned()).collect(),
            states: segments.iter().map(|segment| digit(segment.state)).collect(),
            live_percent: segments
                .iter()
                .map(|segment| percent(segment.live.into(), segment.records.into()))
                .collect(),
            filled_percent: segments
                .iter()
                .map(|segment| percent(segment.bytes.into(), segment_bytes))
                .collect(),
            devices: segments.iter().filter(|_| several).map(|s| s.device.0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterglow_engine::DeviceId;

    #[test]
    fn columns_have_a_member_for_each_segment() {
        let segment = |state, device, records, live, bytes| SegmentFigures {
            state,
            device: DeviceId(device),
            records,
            live,
            bytes,
        };
        let mut segments = vec![
            segment(SegmentState::Free, 0, 0, 0, 0),
            segment(SegmentState::Sealed, 0, 1000, 1, 4096),
            segment(SegmentState::Retired, 0, 4, 4, 2048),
        ];
        let map = SegmentMap::new(&segments, 4096);
        assert_eq!(map.states, "035");
        assert_eq!(map.words[3], "sealed");
        assert_eq!(map.live_percent, [0, 1, 100], "what is alive at all is not 0");
        assert_eq!(map.filled_percent, [0, 100, 50]);
        assert!(map.devices.is_empty());
        segments[2].device = DeviceId(1);
        assert_eq!(SegmentMap::new(&segments, 4096).devices, [0, 0, 1]);
        assert_eq!(SegmentMap::new(&[], 4096).states, "");
    }
}
