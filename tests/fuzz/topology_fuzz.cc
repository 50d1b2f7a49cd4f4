// Topology files.
#include "weft/schedule/topology.h"

#include "tests/fuzz/fuzz.h"

using weft::Errc;
using weft::fuzz::accepts;
using weft::fuzz::check;
using weft::schedule::Topology;

void weft::fuzz::one_input(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  accepts({Errc::kBadConfig}, [&] {
    const Topology topology = Topology::parse(text, "fuzz.toml");
    check(topology.world() >= 1 && topology.world() <= Topology::kMaxWorld,
          "a world has ranks, and a bounded number of them");
    if (topology.world() > 4096) return;
    check(Topology::parse(topology.to_toml(), "fuzz.toml") == topology,
          "what a topology prints reads back as the same");
    for (int place = 0; place < topology.world(); ++place) {
      check(topology.place_of(topology.order()[static_cast<std::size_t>(place)]) == place,
            "the order has every rank once");
    }
    const int last = topology.world() - 1;
    check(topology.level_of(0, last) >= 0 && topology.level_of(0, last) < topology.num_levels(),
          "two ranks share a level");
    check(topology.link(0, last).bandwidth > 0, "a link has a bandwidth");
    check(topology.describe().find('\n') == std::string::npos, "a description is one line");
  });
}
