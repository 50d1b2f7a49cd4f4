// Codecs between a worker and a parameter server (weft/ps), and those of a center on servers
// (weft/strategy).
#pragma once

#include <string>

namespace weft::compress {

// Throws Error(kInvalidArgument), which names the option push_codec, for a codec through which a
// server takes no pushes.
void check_push_codec(const std::string& text);

// Throws Error(kInvalidArgument), which names the option pull_codec, for a codec through which a
// server gives no differences to what the worker has.
void check_difference_codec(const std::string& text);

}  // namespace weft::compress
