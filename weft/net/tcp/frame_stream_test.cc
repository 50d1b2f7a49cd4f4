// Tests the frames of a stream without a socket: the reader gets the written frames, however the
// bytes are divided in transfer.
#include "weft/net/tcp/frame_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

namespace weft::net::internal {
namespace frame_stream_test {

using testing::HasSubstr;

std::vector<std::byte> drain(FrameWriter& writer, std::size_t at_most,
                             std::size_t* frames = nullptr) {
  std::array<std::span<const std::byte>, 3> parts;
  std::vector<std::byte> bytes;
  for (std::size_t i = 0, count = writer.next(parts); i < count; ++i)
    bytes.insert(bytes.end(), parts[i].begin(), parts[i].end());
  bytes.resize(std::min(bytes.size(), at_most));
  const std::size_t complete = writer.advance(bytes.size());
  if (frames != nullptr) *frames += complete;
  return bytes;
}

std::vector<std::byte> all_of(FrameWriter& writer) {
  std::vector<std::byte> bytes;
  while (!writer.empty()) {
    const auto some = drain(writer, ~std::size_t{0});
    bytes.insert(bytes.end(), some.begin(), some.end());
  }
  return bytes;
}

// Feeds as much as the reader has space for.
std::size_t feed(FrameReader& reader, std::span<const std::byte> bytes) {
  std::size_t fed = 0;
  for (const auto part : reader.space()) {
    const std::size_t n = std::min(part.size(), bytes.size() - fed);
    if (n > 0) std::memcpy(part.data(), bytes.data() + fed, n);
    fed += n;
  }
  reader.filled(fed);
  return fed;
}

struct Taken {
  std::vector<std::vector<std::byte>> payloads;
  std::vector<std::byte> under_way;

  void from(FrameReader& reader) {
    for (auto input = reader.take(); input != FrameReader::Input::kNeedBytes;
         input = reader.take()) {
      if (input == FrameReader::Input::kHeader) {
        under_way.assign(reader.header().length, std::byte{0xee});
        reader.place(under_way.data());
      } else {
        payloads.push_back(under_way);
      }
    }
  }
};

Header data_header(std::size_t length) {
  Header header;
  header.total = length;
  return header;
}

std::vector<std::vector<std::byte>> some_payloads(std::mt19937_64& random) {
  std::vector<std::vector<std::byte>> payloads;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{70},
                                 std::size_t{20'000}, kMaxPayload, std::size_t{3}}) {
    payloads.emplace_back(size);
    for (auto& byte : payloads.back()) byte = static_cast<std::byte>(random());
  }
  return payloads;
}

TEST(Framing, ReadsTheWrittenFramesForAnySizesOfPieces) {
  std::mt19937_64 random(3);
  const auto payloads = some_payloads(random);
  for (const std::size_t step : {std::size_t{1'000}, std::size_t{4'097}, std::size_t{1} << 20}) {
    FrameWriter writer(2, 7);
    FrameReader reader(2, 7);
    Taken taken;
    for (const auto& payload : payloads) writer.push(data_header(payload.size()), payload);
    std::size_t frames = 0;
    while (!writer.empty()) {
      const auto bytes = drain(writer, 1 + random() % step, &frames);
      for (std::size_t at = 0; at < bytes.size();) {
        at += feed(reader, std::span(bytes).subspan(at));
        taken.from(reader);
      }
    }
    EXPECT_EQ(frames, payloads.size());
    EXPECT_TRUE(taken.payloads == payloads);
    EXPECT_FALSE(reader.mid_frame());
  }
}

TEST(Framing, DropsAndCountsFramesOfAnOlderEpochAndContinues) {
  FrameWriter old(1, 6), now(1, 7);
  const std::vector<std::byte> stale(40'000, std::byte{6}), fresh(10, std::byte{7});
  old.push(data_header(stale.size()), stale);
  old.push(data_header(0), {});
  now.push(data_header(fresh.size()), fresh);
  auto bytes = all_of(old);
  const auto rest = all_of(now);
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  FrameReader reader(1, 7);
  Taken taken;
  for (std::size_t at = 0; at < bytes.size();) {
    at += feed(reader, std::span(bytes).subspan(at));
    taken.from(reader);
  }
  ASSERT_EQ(taken.payloads.size(), 1u);
  EXPECT_TRUE(taken.payloads.front() == fresh);
  EXPECT_EQ(reader.stale(), 2u);
}

std::string refusal(FrameReader reader, std::span<const std::byte> bytes) {
  Taken taken;
  try {
    for (std::size_t at = 0; at < bytes.size();) {
      at += feed(reader, bytes.subspan(at));
      taken.from(reader);
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kCorrupt);
    return error.what();
  }
  return "nothing";
}

TEST(Framing, RejectsAFutureEpochAnotherStreamAGapARepetitionAndADamagedPayload) {
  const std::vector<std::byte> payload(100, std::byte{1});
  const auto frame = [&](std::uint16_t stream, std::uint32_t epoch) {
    FrameWriter writer(stream, epoch);
    writer.push(data_header(payload.size()), payload);
    return all_of(writer);
  };
  EXPECT_EQ(refusal(FrameReader(1, 7), frame(1, 7)), "nothing");
  EXPECT_THAT(refusal(FrameReader(1, 7), frame(1, 8)), HasSubstr("epoch 8"));
  EXPECT_THAT(refusal(FrameReader(1, 7), frame(0, 7)), HasSubstr("stream 0"));
  auto twice = frame(1, 7);
  const auto again = twice;
  twice.insert(twice.end(), again.begin(), again.end());
  EXPECT_THAT(refusal(FrameReader(1, 7), twice), HasSubstr("frame 0 instead of frame 1"));
  auto damaged = frame(1, 7);
  damaged.back() ^= std::byte{1};
  EXPECT_THAT(refusal(FrameReader(1, 7), damaged), HasSubstr("checksum"));
}

}  // namespace frame_stream_test
}  // namespace weft::net::internal
