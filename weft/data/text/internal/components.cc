#include "weft/data/text/internal/components.h"

#include <algorithm>
#include <functional>

#include "weft/data/text/internal/characters.h"

namespace weft::data::text::internal {
namespace {

constexpr std::size_t kMaxParts = 16;
// The word pattern of GPT-2's encoder.py, which is built into Hugging Face's ByteLevel.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Appends the components of a Sequence, also of nested ones, in order. `member` is the key of its
// list.
void flatten(const Node& node, const char* member, std::vector<Node>& parts) {
  if (node.at("type").text() != "Sequence") {
    parts.push_back(node);
    return;
  }
  node.allow({"type", member});
  for (const Node& part : node.at(member).items()) flatten(part, member, parts);
  if (parts.size() > kMaxParts)
    node.refuse("more than " + std::to_string(kMaxParts) + " components");
}

std::vector<Node> parts_of(const Node& root, const char* key, const char* member) {
  std::vector<Node> parts;
  if (const auto node = root.find(key)) flatten(*node, member, parts);
  return parts;
}

[[noreturn]] void unknown(const Node& node) {
  node.refuse("weft does not support the type " + shown(node.at("type").text()));
}

// Returns the text of {"String": …}. If `regex` is not null, {"Regex": …} is also allowed and is
// stored there.
std::string parse_pattern(const Node& pattern, std::optional<Regex>* regex) {
  pattern.allow({"String", "Regex"});
  const auto expression = pattern.find("Regex");
  if (expression && regex != nullptr) {
    regex->emplace(expression->text(), expression->place());
    return {};
  }
  if (expression) expression->refuse("only a string can be replaced");
  const std::string text = pattern.at("String").text();
  if (text.empty()) pattern.corrupt("the string is empty");
  return text;
}

SplitStage parse_split(const Node& node) {
  node.allow({"type", "pattern", "behavior", "invert"});
  const std::string behavior = node.at("behavior").text();
  if (behavior != "Isolated")
    node.refuse("behavior " + shown(behavior) + " is not supported; Isolated is");
  // "invert" has no effect on Isolated, which keeps both the matches and the text between them.
  node.boolean_or("invert", false);
  SplitStage stage;
  stage.text = parse_pattern(node.at("pattern"), &stage.regex);
  if (!stage.regex) stage.kind = SplitStage::Kind::kLiteral;
  return stage;
}

SplitStage parse_digits(const Node& node) {
  node.allow({"type", "individual_digits"});
  SplitStage stage;
  stage.regex.emplace(node.boolean_or("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)",
                      node.place());
  return stage;
}

SplitStage parse_metaspace(const Node& node) {
  node.allow({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  const std::string scheme = node.text_or(
      "prepend_scheme", node.boolean_or("add_prefix_space", true) ? "always" : "never");
  if (scheme != "first" && scheme != "always" && scheme != "never")
    node.refuse("prepend_scheme " + shown(scheme) + " is not supported");
  SplitStage stage;
  stage.kind = SplitStage::Kind::kMetaspace;
  stage.text = node.at("replacement").text();
  if (stage.text.empty()) node.corrupt("replacement is empty");
  if (character_at(stage.text, 0).length != stage.text.size())
    node.corrupt("the replacement " + shown(stage.text) + " is not one character");
  stage.first = scheme == "first";
  stage.always = scheme == "always";
  stage.cut = node.boolean_or("split", true);
  return stage;
}

void parse_byte_level(const Node& node, PreTokenizer& out) {
  node.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (node.boolean_or("add_prefix_space", true)) {
    out.stages.emplace_back();
    out.stages.back().kind = SplitStage::Kind::kPrefix;
    out.stages.back().text = " ";
  }
  if (node.boolean_or("use_regex", true)) {
    out.stages.emplace_back();
    out.stages.back().regex.emplace(kGpt2Pattern, node.place());
  }
  out.byte_level = true;
}

// Metaspace's decoder removes the space that its pre-tokenizer has prepended.
void parse_metaspace_decoder(const Node& node, Decoding& out) {
  const SplitStage stage = parse_metaspace(node);
  out.space = stage.text;
  out.strip = stage.first || stage.always ? 1 : 0;
}

void parse_strip(const Node& node, Decoding& out) {
  node.allow({"type", "content", "start", "stop"});
  if (node.at("content").text() != " " || node.at("stop").integer(0, 1) != 0)
    node.refuse("only spaces at the beginning can be stripped");
  out.strip = node.at("start").integer(0, 1000);
}

// Only decoders in this order are supported. Strip without Fuse would strip each token, not the
// text.
void check_order(const std::vector<Node>& decoders) {
  static const std::vector<std::string> kOrder{"Replace", "ByteFallback", "Fuse", "Strip"};
  std::size_t next = 0;
  for (const Node& node : decoders) {
    const std::string& type = node.at("type").text();
    const auto place =
        static_cast<std::size_t>(std::find(kOrder.begin(), kOrder.end(), type) - kOrder.begin());
    if (place == kOrder.size()) continue;
    if (place < next || (type == "Strip" && next != place))
      node.refuse("the order is Replace, ByteFallback, Fuse, Strip, with Fuse before Strip");
    next = place + 1;
  }
}

}  // namespace

std::vector<Normalizer> parse_normalizer(const Node& root) {
  std::vector<Normalizer> steps;
  for (const Node& node : parts_of(root, "normalizer", "normalizers")) {
    const std::string& type = node.at("type").text();
    if (type == "NFC") {
      node.allow({"type"});
      steps.push_back({Normalizer::Kind::kNfc, {}, {}});
    } else if (type == "Prepend") {
      node.allow({"type", "prepend"});
      steps.push_back({Normalizer::Kind::kPrepend, {}, node.at("prepend").text()});
    } else if (type == "Replace") {
      node.allow({"type", "pattern", "content"});
      steps.push_back({Normalizer::Kind::kReplace, parse_pattern(node.at("pattern"), nullptr),
                       node.at("content").text()});
    } else {
      unknown(node);
    }
  }
  return steps;
}

PreTokenizer parse_pre_tokenizer(const Node& root) {
  PreTokenizer out;
  for (const Node& node : parts_of(root, "pre_tokenizer", "pretokenizers")) {
    const std::string& type = node.at("type").text();
    if (out.byte_level) node.refuse("no component can follow ByteLevel");
    if (type == "ByteLevel") {
      parse_byte_level(node, out);
    } else if (type == "Split") {
      out.stages.push_back(parse_split(node));
    } else if (type == "Digits") {
      out.stages.push_back(parse_digits(node));
    } else if (type == "Metaspace") {
      out.stages.push_back(parse_metaspace(node));
    } else {
      unknown(node);
    }
  }
  return out;
}

Decoding parse_decoder(const Node& root) {
  Decoding out;
  const std::vector<Node> parts = parts_of(root, "decoder", "decoders");
  if (parts.empty()) root.refuse("there is no decoder, so ids cannot be turned into text");
  check_order(parts);
  for (const Node& node : parts) {
    const std::string& type = node.at("type").text();
    if (type == "ByteLevel") {
      node.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      out.byte_level = true;
    } else if (type == "Metaspace") {
      if (parts.size() > 1) node.refuse("no component can be beside Metaspace");
      parse_metaspace_decoder(node, out);
    } else if (type == "Replace") {
      node.allow({"type", "pattern", "content"});
      out.space = parse_pattern(node.at("pattern"), nullptr);
      if (node.at("content").text() != " ")
        node.refuse("only a replacement by a space is supported");
    } else if (type == "ByteFallback") {
      out.byte_fallback = true;
    } else if (type == "Strip") {
      parse_strip(node, out);
    } else if (type != "Fuse") {  // Fuse has no effect, as decode() returns one string.
      unknown(node);
    }
  }
  if (out.byte_level && (out.byte_fallback || !out.space.empty() || out.strip > 0)) {
    root.refuse("decoder: ByteLevel cannot be mixed with others");
  }
  return out;
}

}  // namespace weft::data::text::internal
