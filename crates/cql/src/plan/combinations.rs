//! Keys as combinations of their columns' values.

use super::key::{KeyTemplate, Part, PartitionTemplate, ValueSource};
use super::types::KeyClass;

/// Every combination of the columns' values as key parts. `None` if a column has none that are
/// certain, or if there are more than `most`.
pub(super) fn combinations(
    columns: impl IntoIterator<Item = Option<(Vec<ValueSource>, KeyClass)>>,
    most: usize,
) -> Option<Vec<Vec<Part>>> {
    let mut keys: Vec<Vec<Part>> = vec![Vec::new()];
    for column in columns {
        let (values, class) = column?;
        if keys.len() * values.len() > most {
            return None;
        }
        keys = keys
            .iter()
            .flat_map(|key| {
                values.iter().map(move |slot| {
                    let mut key = key.clone();
                    key.push(Part { slot: slot.clone(), class });
                    key
                })
            })
            .collect();
    }
    Some(keys)
}

/// The rows with these clustering values in each of the partitions.
pub(super) fn rows(
    partitions: impl Iterator<Item = PartitionTemplate>,
    clusterings: &[Vec<Part>],
) -> Vec<KeyTemplate> {
    partitions
        .flat_map(|partition| {
            clusterings.iter().map(move |clustering| KeyTemplate {
                partition: partition.clone(),
                clustering: clustering.clone(),
            })
        })
        .collect()
}
