// Recognizes files that are not what their reader expects, for errors that say what to do.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace weft {

// Bytes at the start of a file from which the functions below know most kinds.
constexpr std::size_t kHeadBytes = 64 << 10;

// What the file is, after "FILE is", with what to do: "a Git LFS pointer, not the file itself: …".
// Knows pointers of Git LFS and git-annex, text in UTF-16 and UTF-32 with a byte order mark,
// compressed files, archives, and weights in other formats. nullopt: none of these.
std::optional<std::string> wrong_kind(std::string_view head);

// Why a text may not be in UTF-8, after "FILE": "has zero bytes, as text in UTF-16 has: …".
// `is_whole`: nothing follows `head`. Otherwise its last character may be cut. nullopt: no doubt.
std::optional<std::string> doubt_of_text(std::string_view head, bool is_whole);

// Bytes of UTF-8's byte order mark at the start of a text: 3, or 0 without one.
std::size_t mark_bytes(std::string_view text);

}  // namespace weft
