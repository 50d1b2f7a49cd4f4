#include "weft/data/text/internal/model.h"

#include "weft/base/crc32c.h"
#include "weft/base/error.h"
#include "weft/base/json/json.h"
#include "weft/data/text/internal/byte_alphabet.h"
#include "weft/data/text/internal/components.h"
#include "weft/data/text/internal/nfc.h"
#include "weft/data/text/internal/node.h"

namespace weft::data::text::internal {
namespace {

std::string byte_token(unsigned byte) {
  constexpr char kHex[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
}

TokenId id_in(const IdOfText& ids, std::string_view text) {
  const auto found = ids.find(text);
  return found == ids.end() ? -1 : found->second;
}

void parse_vocab(const Node& node, std::int64_t max_id, Model& out) {
  std::vector<bool> taken;
  for (const auto& [text, value] : node.object().items()) {
    if (!value.is_number_unsigned() ||
        value.get<std::uint64_t>() > static_cast<std::uint64_t>(max_id)) {
      node.corrupt("the id of " + shown(text) + " is not a whole number from 0 to " +
                   std::to_string(max_id));
    }
    const auto id = value.get<std::size_t>();
    if (id >= taken.size()) taken.resize(id + 1);
    if (taken[id]) node.corrupt("two tokens have the id " + std::to_string(id));
    taken[id] = true;
    out.vocab.emplace(text, static_cast<TokenId>(id));
  }
  if (out.vocab.empty()) node.corrupt("the vocabulary is empty");
}

std::pair<std::string, std::string> parse_pair(const Node& node) {
  if (node.is_text()) {
    const std::string& text = node.text();
    const std::size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      node.corrupt(shown(text) + " does not have two tokens");
    return {text.substr(0, space), text.substr(space + 1)};
  }
  const std::vector<Node> two = node.items();
  if (two.size() != 2) node.corrupt("a merge must have two tokens");
  return {two[0].text(), two[1].text()};
}

void parse_merges(const Node& node, Model& out) {
  const std::vector<Node> merges = node.items();
  out.merges = MergeTable(merges.size());
  std::int32_t rank = 0;
  for (const Node& merge : merges) {
    const auto [left, right] = parse_pair(merge);
    const std::string both = left + right;
    for (const std::string* token : {&left, &right, &both}) {
      if (id_in(out.vocab, *token) < 0)
        merge.corrupt("there is no token " + shown(*token) + " in the vocabulary");
    }
    out.merges.add(id_in(out.vocab, left), id_in(out.vocab, right),
                   {rank++, id_in(out.vocab, both)});
  }
}

void parse_bpe(const Node& node, const TokenizerLimits& limits, Model& out) {
  // Old files have no "type" in the model.
  const std::string type = node.text_or("type", "BPE");
  if (type != "BPE")
    node.refuse("weft does not support the type " + shown(type) + "; it supports BPE");
  node.allow({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
              "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (node.find("dropout")) node.refuse("dropout is not supported; set it to null");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!node.text_or(key, "").empty()) node.refuse(std::string(key) + " is not supported");
  }
  parse_vocab(node.at("vocab"), limits.max_id, out);
  parse_merges(node.at("merges"), out);
  out.fuse_unknown = node.boolean_or("fuse_unk", false);
  out.byte_fallback = node.boolean_or("byte_fallback", false);
  if (const auto unknown = node.find("unk_token")) {
    out.unknown = id_in(out.vocab, unknown->text());
    if (out.unknown < 0)
      unknown->corrupt("there is no token " + shown(unknown->text()) + " in the vocabulary");
  }
  if (out.byte_level && out.byte_fallback)
    node.refuse("byte_fallback beside a ByteLevel pre_tokenizer");
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char one = static_cast<char>(byte);
    out.bytes[byte] = out.byte_level      ? id_in(out.vocab, written_as({&one, 1}))
                      : out.byte_fallback ? id_in(out.vocab, byte_token(byte))
                                          : -1;
  }
  if (!node.boolean_or("ignore_merges", false)) return;
  for (const auto& [text, id] : out.vocab) {
    if (!out.byte_level) {
      out.whole.emplace(text, id);
    } else if (auto bytes = bytes_of(text)) {
      out.whole.emplace(std::move(*bytes), id);
    }
  }
}

void set_texts(Model& out) {
  for (const auto& [text, id] : out.vocab) {
    if (out.byte_level) {
      out.texts.set(id, bytes_of(text).value_or(text));
    } else {
      out.texts.set(id,
                    out.decoding.space.empty() ? text : replaced(text, out.decoding.space, " "));
    }
  }
  if (!out.decoding.byte_fallback) return;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char one = static_cast<char>(byte);
    if (const TokenId id = id_in(out.vocab, byte_token(byte)); id >= 0)
      out.texts.set(id, {&one, 1});
  }
}

// `room`: bytes that the normalized texts of this token and of later ones may have.
void parse_added(const Node& node, const TokenizerLimits& limits, std::size_t& room, Model& out) {
  node.allow({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  for (const char* key : {"single_word", "lstrip", "rstrip"}) {
    if (node.boolean_or(key, false)) node.refuse(std::string(key) + " is not supported");
  }
  const std::string& content = node.at("content").text();
  const auto id = static_cast<TokenId>(node.at("id").integer(0, limits.max_id));
  if (content.empty()) node.corrupt("the content is empty");
  const TokenId known = id_in(out.vocab, content);
  if (known >= 0 ? known != id : out.texts.find(id).has_value())
    node.corrupt("the id of " + shown(content) + " is not that of the vocabulary");
  if (!out.added.emplace(content, id).second) node.corrupt(shown(content) + " occurs twice");
  out.texts.set(id,
                out.decoding.space.empty() ? content : replaced(content, out.decoding.space, " "));
  const bool special = node.boolean_or("special", false);
  if (out.normalizers.empty() || !node.boolean_or("normalized", true)) {
    out.raw_tokens.add(content, id, special);
    return;
  }
  const auto text = normalized(out.normalizers, content, room);
  if (!text)
    node.refuse("the normalizer makes the added tokens longer than " +
                std::to_string(limits.max_bytes) + " bytes");
  room -= text->size();
  if (!text->empty()) out.normalized_tokens.add(*text, id, special);
}

// True if replaced() would be longer than `most` bytes.
bool is_longer(std::string_view text, const Normalizer& step, std::size_t most) {
  const std::size_t old = step.old.size(), by = step.text.size();
  if (by <= old || text.size() + text.size() / old * by <= most) return false;
  std::size_t length = text.size();
  for (std::size_t at = text.find(step.old); at != std::string_view::npos && length <= most;
       at = text.find(step.old, at + old))
    length += by - old;
  return length > most;
}

}  // namespace

void TextOfId::set(TokenId id, std::string_view text) {
  const auto at = static_cast<std::size_t>(id);
  if (at >= spans_.size()) spans_.resize(at + 1);
  spans_[at] = {static_cast<std::uint32_t>(all_.size()), static_cast<std::uint32_t>(text.size())};
  all_ += text;
}

std::optional<std::string_view> TextOfId::find(TokenId id) const {
  if (id < 0 || id >= size() || spans_[static_cast<std::size_t>(id)].length == ~std::uint32_t{0})
    return std::nullopt;
  const Span span = spans_[static_cast<std::size_t>(id)];
  return std::string_view(all_).substr(span.begin, span.length);
}

std::optional<std::string> normalized(const std::vector<Normalizer>& steps, std::string_view text,
                                      std::size_t most) {
  std::string out(text);
  for (const Normalizer& step : steps) {
    switch (step.kind) {
      case Normalizer::Kind::kNfc: out = nfc(out); break;
      case Normalizer::Kind::kPrepend:
        if (!out.empty()) out.insert(0, step.text);
        break;
      case Normalizer::Kind::kReplace:
        if (is_longer(out, step, most)) return std::nullopt;
        out = replaced(out, step.old, step.text);
        break;
    }
    if (out.size() > most) return std::nullopt;
  }
  return out;
}

Model parse_model(std::string_view json, const std::string& name, const TokenizerLimits& limits) {
  if (json.size() > limits.max_bytes)
    throw Error(Errc::kCorrupt,
                name + ": longer than " + std::to_string(limits.max_bytes) + " bytes");
  const nlohmann::json document = parse_json(json, name);
  const Node root(document, name);
  root.allow({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
              "post_processor", "decoder", "model"});
  Model out;
  out.name = name;
  out.fingerprint = crc32c(json.data(), json.size());
  out.normalizers = parse_normalizer(root);
  PreTokenizer pre_tokenizer = parse_pre_tokenizer(root);
  out.stages = std::move(pre_tokenizer.stages);
  out.byte_level = pre_tokenizer.byte_level;
  out.decoding = parse_decoder(root);
  if (out.byte_level != out.decoding.byte_level)
    root.refuse("only one of pre_tokenizer and decoder is ByteLevel; both must be, or neither");
  parse_bpe(root.at("model"), limits, out);
  set_texts(out);
  if (const auto added = root.find("added_tokens")) {
    std::size_t room = limits.max_bytes;
    for (const Node& token : added->items()) parse_added(token, limits, room, out);
  }
  return out;
}

}  // namespace weft::data::text::internal
