#include "weft/base/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "weft/base/internal/crc32c_paths.h"
#include "weft/base/random.h"

namespace weft {
namespace {

std::uint32_t crc_of(const std::string& text) { return crc32c(text.data(), text.size()); }

TEST(Crc32c, MatchesKnownAnswers) {
  EXPECT_EQ(crc_of("123456789"),
            0xE3069283u);  // the check value of the CRC catalogs
  EXPECT_EQ(crc_of(""), 0u);
  // RFC 3720, appendix B.4.
  EXPECT_EQ(crc_of(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc_of(std::string(32, '\xFF')), 0x62A8AB43u);
  std::string rising;
  for (int i = 0; i < 32; ++i) rising += static_cast<char>(i);
  EXPECT_EQ(crc_of(rising), 0x46DD794Eu);
  EXPECT_EQ(crc_of(std::string(rising.rbegin(), rising.rend())), 0x113FDB5Cu);
}

TEST(Crc32c, TheInstructionAgreesWithTheTableAtEveryLengthAndAlignment) {
  if (!internal::crc32c_has_instruction()) GTEST_SKIP() << "no SSE4.2";
  Random random(1);
  std::vector<unsigned char> bytes(10000);
  for (auto& byte : bytes) byte = static_cast<unsigned char>(random.next_u32());
  std::vector<std::size_t> lengths{3071, 3072, 3073, 6143, 6144, 9000};
  for (std::size_t length = 0; length < 80; ++length) lengths.push_back(length);
  for (const std::size_t length : lengths) {
    for (std::size_t start = 0; start < 9; ++start) {
      const std::uint32_t state = random.next_u32();
      EXPECT_EQ(internal::crc32c_instruction(&bytes[start], length, state),
                internal::crc32c_table(&bytes[start], length, state))
          << length << " bytes from " << start;
    }
  }
}

TEST(Crc32c, FoldingAgreesWithTheTableAtEveryLengthAndAlignment) {
  if (!internal::crc32c_can_fold()) GTEST_SKIP() << "no AVX-512 with VPCLMULQDQ";
  Random random(2);
  std::vector<unsigned char> bytes(5000);
  for (auto& byte : bytes) byte = static_cast<unsigned char>(random.next_u32());
  for (std::size_t length = 0; length < 1100; ++length) {
    const std::size_t start = length % 67;
    const std::uint32_t state = random.next_u32();
    EXPECT_EQ(internal::crc32c_fold(&bytes[start], length, state),
              internal::crc32c_table(&bytes[start], length, state))
        << length;
  }
  EXPECT_EQ(internal::crc32c_fold(bytes.data(), 4999, 1),
            internal::crc32c_table(bytes.data(), 4999, 1));
}

TEST(Crc32c, ContinuesFromAnEarlierPart) {
  const std::string text = "The quick brown fox jumps over the lazy dog";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(crc32c(text.data() + cut, text.size() - cut, crc32c(text.data(), cut)), crc_of(text));
  }
}

}  // namespace
}  // namespace weft
