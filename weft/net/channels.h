// Ranges of channels, and how an error names one.
#pragma once

#include <cstdint>
#include <string>

#include "weft/net/endpoint.h"

namespace weft::net {

// The channel of the messages that the user gave tag t: kTags + t.
constexpr Channel kTags = Channel{1} << 61;

// For an error: " with tag 7", or " on channel 7" for a small number. Empty for other channels,
// which collectives use: their numbers tell a user nothing.
inline std::string on_channel(Channel channel) {
  constexpr Channel kOwn = Channel{1} << 40;
  if (channel >> 61 == 1) return " with tag " + std::to_string(static_cast<std::uint32_t>(channel));
  return channel < kOwn ? " on channel " + std::to_string(channel) : "";
}

}  // namespace weft::net
