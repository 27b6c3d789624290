//! What of a description matters here, as XML.

use serde::Deserialize;
use serde::de::IgnoredAny;

#[derive(Debug, Deserialize)]
pub(super) struct Mpd {
    #[serde(rename = "@type")]
    pub(super) kind: Option<String>,
    #[serde(rename = "@mediaPresentationDuration")]
    pub(super) length: Option<String>,
    #[serde(rename = "BaseURL", default)]
    pub(super) bases: Vec<String>,
    #[serde(rename = "Period", default)]
    pub(super) periods: Vec<Period>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Period {
    #[serde(rename = "@start")]
    pub(super) start: Option<String>,
    #[serde(rename = "@duration")]
    pub(super) length: Option<String>,
    #[serde(rename = "BaseURL", default)]
    pub(super) bases: Vec<String>,
    #[serde(rename = "AdaptationSet", default)]
    pub(super) sets: Vec<Set>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Set {
    #[serde(rename = "@contentType")]
    pub(super) content: Option<String>,
    #[serde(rename = "@mimeType")]
    pub(super) mime: Option<String>,
    #[serde(rename = "@codecs")]
    pub(super) codecs: Option<String>,
    #[serde(rename = "BaseURL", default)]
    pub(super) bases: Vec<String>,
    #[serde(rename = "SegmentTemplate")]
    pub(super) template: Option<Template>,
    #[serde(rename = "ContentProtection", default)]
    pub(super) protections: Vec<IgnoredAny>,
    #[serde(rename = "Representation", default)]
    pub(super) representations: Vec<Representation>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Template {
    #[serde(rename = "@timescale")]
    pub(super) timescale: Option<u64>,
    #[serde(rename = "@duration")]
    pub(super) length: Option<u64>,
    #[serde(rename = "@startNumber")]
    pub(super) first: Option<u64>,
    #[serde(rename = "@initialization")]
    pub(super) header: Option<String>,
    #[serde(rename = "@media")]
    pub(super) media: Option<String>,
    #[serde(rename = "SegmentTimeline")]
    pub(super) timeline: Option<Timeline>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Timeline {
    #[serde(rename = "S", default)]
    pub(super) runs: Vec<Run>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Run {
    #[serde(rename = "@t")]
    pub(super) at: Option<u64>,
    #[serde(rename = "@d")]
    pub(super) length: u64,
    #[serde(rename = "@r")]
    pub(super) again: Option<i64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Representation {
    #[serde(rename = "@id")]
    pub(super) id: Option<String>,
    #[serde(rename = "@mimeType")]
    pub(super) mime: Option<String>,
    #[serde(rename = "@bandwidth")]
    pub(super) bits: Option<u64>,
    #[serde(rename = "@codecs")]
    pub(super) codecs: Option<String>,
    #[serde(rename = "@width")]
    pub(super) width: Option<u64>,
    #[serde(rename = "@height")]
    pub(super) height: Option<u64>,
    #[serde(rename = "@frameRate")]
    pub(super) pace: Option<String>,
    #[serde(rename = "ContentProtection", default)]
    pub(super) protections: Vec<IgnoredAny>,
    #[serde(rename = "BaseURL", default)]
    pub(super) bases: Vec<String>,
    #[serde(rename = "SegmentTemplate")]
    pub(super) template: Option<Template>,
}
