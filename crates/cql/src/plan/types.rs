//! CQL types, as far as keys need them.

/// Native types, by the names of `system_schema.columns`.
const NATIVE: [&str; 22] = [
    "ascii",
    "bigint",
    "blob",
    "boolean",
    "counter",
    "date",
    "decimal",
    "double",
    "duration",
    "empty",
    "float",
    "inet",
    "int",
    "smallint",
    "text",
    "time",
    "timestamp",
    "timeuuid",
    "tinyint",
    "uuid",
    "varchar",
    "varint",
];

/// Whether `name` is a native type.
pub(crate) fn is_native(name: &str) -> bool {
    NATIVE.contains(&name)
}

/// Whether a type is certainly made of the server's own types alone.
pub(crate) fn is_built_in(name: &str) -> bool {
    const OF_OTHERS: [&str; 6] = ["frozen", "list", "map", "set", "tuple", "vector"];
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '<' | '>' | ',' | ' ');
    let is_length = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    let known = |word: &str| is_native(word) || OF_OTHERS.contains(&word) || is_length(word);
    name.chars().all(is_part) && name.split(['<', '>', ',', ' ']).all(known)
}

/// Whether values of a clustering column of this type that the database holds to be equal can be
/// recognised by [`is_canonical`]. Decimals compare by value (1.0 is 1.00), tuples and collections
/// by element.
pub(crate) fn has_one_form(name: &str) -> bool {
    is_native(name) && !matches!(name, "decimal" | "counter" | "duration" | "empty")
}

/// Whether `value` is the only form of itself under the clustering order of its type. Values that
/// are not are left to the partition's epoch: `varint` with needless leading bytes, `boolean` other
/// than 0 and 1, not-a-numbers.
pub(crate) fn is_canonical(class: KeyClass, value: &[u8]) -> bool {
    match class {
        KeyClass::Bytes => true,
        KeyClass::Never => false,
        KeyClass::Boolean => matches!(value, [] | [0] | [1]),
        KeyClass::Varint => match value {
            [0x00, next, ..] => *next >= 0x80,
            [0xff, next, ..] => *next < 0x80,
            _ => true,
        },
        KeyClass::Float => match <[u8; 4]>::try_from(value) {
            Ok(bytes) => !f32::from_be_bytes(bytes).is_nan(),
            Err(_) => value.is_empty(),
        },
        KeyClass::Double => match <[u8; 8]>::try_from(value) {
            Ok(bytes) => !f64::from_be_bytes(bytes).is_nan(),
            Err(_) => value.is_empty(),
        },
    }
}

/// How equality of key values relates to their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum KeyClass {
    /// Equal values have equal bytes.
    Bytes,
    /// `boolean`.
    Boolean,
    /// `varint`.
    Varint,
    /// `float`.
    Float,
    /// `double`.
    Double,
    /// Not known: no value is taken for canonical.
    Never,
}

impl KeyClass {
    /// The class of a partition key column: partitions are told apart by their bytes alone,
    /// whatever the type.
    pub(crate) const PARTITION: KeyClass = KeyClass::Bytes;

    /// The class of a clustering column.
    pub(crate) fn of_clustering(cql_type: &str) -> KeyClass {
        match cql_type {
            "boolean" => KeyClass::Boolean,
            "varint" => KeyClass::Varint,
            "float" => KeyClass::Float,
            "double" => KeyClass::Double,
            name if has_one_form(name) => KeyClass::Bytes,
            _ => KeyClass::Never,
        }
    }
}

/// Which bytes stay the same when a server decodes a value and encodes it again. Servers do so with
/// the elements of a bound list. A `varint` with needless bytes, a v4 address in the form of v6 and
/// a `boolean` of 2 come back as other bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// Any bytes.
    Any,
    /// So many bytes, of any value.
    Fixed(usize),
    /// UTF-8. Servers also take some forms of Java's own.
    Text,
    /// ASCII.
    Ascii,
    /// 0 or 1.
    Boolean,
    /// The shortest form.
    Varint,
    /// A scale, and the shortest form of the unscaled value.
    Decimal,
    /// No not-a-number.
    Float,
    /// No not-a-number.
    Double,
    /// No v4 address in the form of v6.
    Inet,
    /// Not known.
    Never,
}

impl Form {
    /// The form of values of a type.
    pub(crate) fn of(cql_type: &str) -> Form {
        match cql_type {
            "blob" => Form::Any,
            "tinyint" => Form::Fixed(1),
            "smallint" => Form::Fixed(2),
            "int" | "date" => Form::Fixed(4),
            "bigint" | "timestamp" | "time" => Form::Fixed(8),
            "uuid" | "timeuuid" => Form::Fixed(16),
            "text" | "varchar" => Form::Text,
            "ascii" => Form::Ascii,
            "boolean" => Form::Boolean,
            "varint" => Form::Varint,
            "decimal" => Form::Decimal,
            "float" => Form::Float,
            "double" => Form::Double,
            "inet" => Form::Inet,
            _ => Form::Never,
        }
    }

    /// Whether these bytes stay the same.
    pub(crate) fn is_kept(self, value: &[u8]) -> bool {
        let plain = |class| !value.is_empty() && is_canonical(class, value);
        match self {
            Form::Any => true,
            Form::Fixed(length) => value.len() == length,
            Form::Text => std::str::from_utf8(value).is_ok(),
            Form::Ascii => value.is_ascii(),
            Form::Boolean => plain(KeyClass::Boolean),
            Form::Varint => plain(KeyClass::Varint),
            Form::Decimal => value
                .split_first_chunk::<4>()
                .is_some_and(|(_, unscaled)| Form::Varint.is_kept(unscaled)),
            Form::Float => plain(KeyClass::Float),
            Form::Double => plain(KeyClass::Double),
            Form::Inet => match <[u8; 16]>::try_from(value) {
                Ok(v6) => std::net::Ipv6Addr::from(v6).to_ipv4_mapped().is_none(),
                Err(_) => value.len() == 4,
            },
            Form::Never => false,
        }
    }
}
