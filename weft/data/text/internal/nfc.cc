#include "weft/data/text/internal/nfc.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "weft/data/text/internal/characters.h"

namespace weft::data::text::internal {
namespace {

// Hangul syllables are computed (Unicode Standard, 3.12).
constexpr std::uint32_t kS = 0xAC00, kL = 0x1100, kV = 0x1161, kT = 0x11A7, kLs = 19, kVs = 21, kTs = 28, kSs = kLs * kVs * kTs;
constexpr std::uint32_t kNotUtf8 = 0x200000;  // + the byte: a starter that nothing is done to
constexpr std::uint32_t kFirstMark = 0x300;   // whatever is below is a starter and composes with nothing before it

struct Mark {
  std::uint32_t code;
  std::uint32_t combining;
};

std::uint32_t class_of(std::uint32_t code) {
  const NfcClass* const end = kNfcClasses + kNfcClassCount;
  const NfcClass* const found =
      std::lower_bound(kNfcClasses, end, code, [](const NfcClass& c, std::uint32_t value) { return c.end < value; });
  return found != end && found->begin <= code ? found->combining : 0;
}

const NfcPair* pair_of(std::uint32_t code) {
  const NfcPair* const end = kNfcPairs + kNfcPairCount;
  const NfcPair* const found = std::lower_bound(kNfcPairs, end, code, [](const NfcPair& p, std::uint32_t value) { return p.code < value; });
  return found != end && found->code == code ? found : nullptr;
}

void decompose(std::uint32_t code, std::vector<Mark>& out) {
  if (code >= kS && code < kS + kSs) {
    const std::uint32_t index = code - kS;
    out.push_back({kL + index / (kVs * kTs), 0});
    out.push_back({kV + index % (kVs * kTs) / kTs, 0});
    if (index % kTs != 0) out.push_back({kT + index % kTs, 0});
    return;
  }
  const NfcPair* const pair = pair_of(code);
  if (pair == nullptr) {
    out.push_back({code, class_of(code)});
    return;
  }
  decompose(pair->first & ~kNfcOneWay, out);
  if (pair->second != 0) decompose(pair->second, out);
}

// 0: the two make no character.
std::uint32_t compose(std::uint32_t first, std::uint32_t second) {
  if (first >= kL && first < kL + kLs && second >= kV && second < kV + kVs) return kS + ((first - kL) * kVs + second - kV) * kTs;
  const bool open_syllable = first >= kS && first < kS + kSs && (first - kS) % kTs == 0;
  if (open_syllable && second > kT && second < kT + kTs) return first + second - kT;
  static const auto composed = [] {
    std::unordered_map<std::uint64_t, std::uint32_t> map;
    for (std::size_t i = 0; i < kNfcPairCount; ++i) {
      const NfcPair& pair = kNfcPairs[i];
      if ((pair.first & kNfcOneWay) == 0) map[static_cast<std::uint64_t>(pair.first) << 32 | pair.second] = pair.code;
    }
    return map;
  }();
  const auto found = composed.find(static_cast<std::uint64_t>(first) << 32 | second);
  return found == composed.end() ? 0 : found->second;
}

// Marks of one starter in the order of their classes, equals as they came.
void order(std::vector<Mark>& marks) {
  for (auto begin = marks.begin(); begin != marks.end();) {
    if (begin->combining == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, marks.end(), [](const Mark& mark) { return mark.combining == 0; });
    std::stable_sort(begin, end, [](const Mark& a, const Mark& b) { return a.combining < b.combining; });
    begin = end;
  }
}

// A mark joins the last starter unless one of its class or above, or a starter, stands between.
void compose_all(std::vector<Mark>& marks) {
  std::size_t kept = 0, starter = 0;
  bool has_starter = false;
  for (const Mark mark : marks) {
    const bool adjacent = has_starter && kept == starter + 1;
    const bool open = has_starter && (adjacent || (marks[kept - 1].combining != 0 && marks[kept - 1].combining < mark.combining));
    const std::uint32_t both = open ? compose(marks[starter].code, mark.code) : 0;
    if (both != 0) {
      marks[starter].code = both;
      continue;
    }
    if (mark.combining == 0) {
      starter = kept;
      has_starter = true;
    }
    marks[kept++] = mark;
  }
  marks.resize(kept);
}

}  // namespace

std::string nfc(std::string_view text) {
  // U+0300 begins with 0xCC.
  if (std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0xCC; })) return std::string(text);
  std::string out;
  out.reserve(text.size());
  std::vector<Mark> marks;
  const auto flush = [&] {
    if (marks.size() > 1) {
      order(marks);
      compose_all(marks);
    }
    for (const Mark& mark : marks)
      mark.code >= kNotUtf8 ? void(out += static_cast<char>(mark.code - kNotUtf8)) : append_utf8(out, mark.code);
    marks.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if (!character.valid || character.code < kFirstMark) flush();
    if (!character.valid) {
      marks.push_back({kNotUtf8 + character.code, 0});
    } else {
      decompose(character.code, marks);
    }
    at += character.length;
  }
  flush();
  return out;
}

}  // namespace weft::data::text::internal
