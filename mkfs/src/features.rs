//! The features of a new file system: the profile's, the user's changes, and what these imply.

use crate::options::{FeatureEdit, Options, Profile};
use journalfs::format::features::Feature;
use journalfs::format::{Compat, Features, Incompat, RoCompat};
use journalfs::{Error, Result};

/// What this program can make. (What it can't is either refused by journalfs for writing, or set by others.)
const KNOWN: Features = Features {
    compat: Compat::HAS_JOURNAL
        .union(Compat::EXT_ATTR)
        .union(Compat::RESIZE_INODE)
        .union(Compat::DIR_INDEX)
        .union(Compat::SPARSE_SUPER2)
        .union(Compat::FAST_COMMIT)
        .union(Compat::STABLE_INODES)
        .union(Compat::ORPHAN_FILE),
    incompat: Incompat::FILETYPE
        .union(Incompat::EXTENT)
        .union(Incompat::BIT64)
        .union(Incompat::META_BG)
        .union(Incompat::MMP)
        .union(Incompat::FLEX_BG)
        .union(Incompat::EA_INODE)
        .union(Incompat::METADATA_CSUM_SEED)
        .union(Incompat::LARGE_DIR)
        .union(Incompat::INLINE_DATA),
    ro_compat: RoCompat::SPARSE_SUPER
        .union(RoCompat::LARGE_FILE)
        .union(RoCompat::HUGE_FILE)
        .union(RoCompat::GDT_CSUM)
        .union(RoCompat::DIR_NLINK)
        .union(RoCompat::EXTRA_ISIZE)
        .union(RoCompat::METADATA_CSUM),
};

fn of_profile(profile: Profile) -> Features {
    let mut features = Features {
        compat: Compat::HAS_JOURNAL | Compat::EXT_ATTR | Compat::RESIZE_INODE | Compat::DIR_INDEX,
        incompat: Incompat::FILETYPE,
        ro_compat: RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE,
    };
    if profile != Profile::Ext3 {
        features.incompat |= Incompat::EXTENT | Incompat::BIT64 | Incompat::FLEX_BG;
        features.ro_compat |=
            RoCompat::HUGE_FILE | RoCompat::DIR_NLINK | RoCompat::EXTRA_ISIZE | RoCompat::METADATA_CSUM;
    }
    features
}

const RESIZE_INODE: Feature = Feature::Compat(Compat::RESIZE_INODE);

/// The features that `options` ask for, made consistent.
pub(crate) fn resolve(options: &Options) -> Result<Features> {
    let mut features = of_profile(options.profile);
    for edit in &options.features {
        match edit {
            FeatureEdit::Clear => features = Features::default(),
            FeatureEdit::Set(feature, on) => features.set(*feature, *on),
        }
    }
    check_known(features)?;
    if options.resize_blocks.is_some() {
        features.compat |= Compat::RESIZE_INODE;
    }
    if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
        features.ro_compat.remove(RoCompat::GDT_CSUM);
    }
    resolve_resize_inode(&mut features, options)?;
    let wide = Feature::Incompat(Incompat::BIT64);
    if features.has(wide) && !features.incompat.contains(Incompat::EXTENT) {
        // Indirect blocks hold 32-bit numbers.
        if options.asks_for(wide) {
            return usage("64bit needs extent");
        }
        features.set(wide, false);
    }
    check_dependencies(features)?;
    Ok(features)
}

fn check_known(features: Features) -> Result<()> {
    let unknown = Features {
        compat: features.compat.difference(KNOWN.compat),
        incompat: features.incompat.difference(KNOWN.incompat),
        ro_compat: features.ro_compat.difference(KNOWN.ro_compat),
    };
    match unknown.names().first() {
        Some(name) => Err(Error::Usage(format!("the feature {name} can't be made here"))),
        None => Ok(()),
    }
}

fn resolve_resize_inode(features: &mut Features, options: &Options) -> Result<()> {
    if !features.has(RESIZE_INODE) {
        return Ok(());
    }
    let asked = options.asks_for(RESIZE_INODE) || options.resize_blocks.is_some();
    let meta_bg = features.incompat.contains(Incompat::META_BG);
    let sparse = features.ro_compat.contains(RoCompat::SPARSE_SUPER)
        || features.compat.contains(Compat::SPARSE_SUPER2);
    match (meta_bg || !sparse, asked) {
        (false, _) => {}
        (true, false) => features.set(RESIZE_INODE, false),
        (true, true) if meta_bg => return usage("resize_inode and meta_bg exclude each other"),
        (true, true) => return usage("resize_inode needs sparse_super"),
    }
    Ok(())
}

fn check_dependencies(features: Features) -> Result<()> {
    let has = |feature| features.has(feature);
    let journal = Feature::Compat(Compat::HAS_JOURNAL);
    let csum = Feature::RoCompat(RoCompat::METADATA_CSUM);
    for (feature, needed) in [
        (Feature::Compat(Compat::FAST_COMMIT), journal),
        (Feature::Compat(Compat::ORPHAN_FILE), journal),
        (Feature::Incompat(Incompat::METADATA_CSUM_SEED), csum),
    ] {
        if has(feature) && !has(needed) {
            return usage(&format!("{} needs {}", name(feature), name(needed)));
        }
    }
    Ok(())
}

fn name(feature: Feature) -> String {
    let mut one = Features::default();
    one.set(feature, true);
    one.to_string()
}

fn usage<T>(text: &str) -> Result<T> {
    Err(Error::Usage(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::parse_features;

    fn with(profile: Profile, list: &str) -> Result<Features> {
        resolve(&Options { features: parse_features(list)?, ..Options::new(profile) })
    }

    #[test]
    fn implied_and_impossible_features() {
        let features = with(Profile::Ext4, "uninit_bg").unwrap();
        assert!(!features.ro_compat.contains(RoCompat::GDT_CSUM));
        assert!(!with(Profile::Ext4, "meta_bg").unwrap().has(RESIZE_INODE));
        assert!(!with(Profile::Ext3, "^sparse_super").unwrap().has(RESIZE_INODE));
        assert_eq!(with(Profile::Ext4, "none").unwrap(), Features::default());
        for (list, named) in [
            ("meta_bg,resize_inode", "meta_bg"),
            ("^sparse_super,resize_inode", "sparse_super"),
            ("^extent,64bit", "64bit"),
            ("bigalloc", "bigalloc"),
            ("encrypt", "encrypt"),
            ("needs_recovery", "needs_recovery"),
            ("^has_journal,orphan_file", "orphan_file"),
            ("^metadata_csum,metadata_csum_seed", "metadata_csum_seed"),
        ] {
            let error = with(Profile::Ext4, list).unwrap_err().to_string();
            assert!(error.contains(named), "{list}: {error}");
        }
    }
}
