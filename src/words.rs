//! Enums whose variants are the words of a mount option.

/// Declares such an enum, with its conversions.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident for $option:literal { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
        pub enum $name { $($(#[$variant_doc])* $variant),* }

        impl $name {
            /// The word that selects this.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::error::Error;
            fn from_str(word: &str) -> $crate::error::Result<Self> {
                match word {
                    $($word => Ok(Self::$variant),)*
                    _ => Err($crate::error::Error::Usage(format!(
                        concat!("mount option ", $option, "={}: one of {} is meant"), word, [$($word),*].join(", ")
                    ))),
                }
            }
        }
    };
}
