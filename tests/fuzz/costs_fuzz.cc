// Tables of what communication costs, as calibration leaves them in files and rank 0 sends them to
// the others; codecs' descriptions.
#include <cmath>
#include <cstdio>

#include "tests/fuzz/fuzz.h"
#include "weft/base/crc32c.h"
#include "weft/compress/spec.h"
#include "weft/plan/collectives/cost_table.h"

using weft::Errc;
using weft::fuzz::accepts;
using weft::fuzz::check;
using weft::plan::CostTable;

namespace {

void parse_as_table(const std::string& text) {
  accepts({Errc::kCorrupt}, [&] {
    const CostTable table = CostTable::parse(text);
    check(CostTable::parse(table.text()) == table, "a table reads back as the same");
    for (const auto& [transport, cost] : table.transports) {
      check(std::isfinite(cost.message.at(1e6)) && cost.message.at(1e6) >= 0, "a cost is a number");
    }
  });
}

}  // namespace

void weft::fuzz::one_input(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  parse_as_table(text);
  char end[32];
  std::snprintf(end, sizeof end, "crc32c %08x\n", weft::crc32c(text.data(), text.size()));
  parse_as_table(text + end);
  accepts({Errc::kInvalidArgument}, [&] {
    const weft::compress::Spec spec = weft::compress::parse(text);
    check(weft::compress::parse(weft::compress::to_string(spec)) == spec,
          "a codec's description reads back as the same");
  });
}
