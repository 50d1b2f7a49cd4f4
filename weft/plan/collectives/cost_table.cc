#include "weft/plan/collectives/cost_table.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "weft/base/crc32c.h"
#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/text/numbers.h"

namespace weft::plan {
namespace {

constexpr std::array<Transport, 4> kTransports = {Transport::kDirect, Transport::kShm,
                                                  Transport::kTcp, Transport::kMpi};
constexpr std::array<const char*, 4> kTransportNames = {"direct", "shm", "tcp", "mpi"};
constexpr std::string_view kTitle = "weft cost table 1";

CostTable make_defaults() {
  CostTable table;
  const Curve reduce = Curve::line(0.1e-6, 1 / 8e9), copy = Curve::line(0.1e-6, 1 / 8e9);
  table.transports[Transport::kDirect] = {.message = Curve::line(0.1e-6, 1 / 8e9),
                                          .reduce = reduce,
                                          .copy = copy,
                                          .meeting = 0.3e-6,
                                          .measured = {}};
  table.transports[Transport::kShm] = {.message = Curve::line(0.5e-6, 1 / 5e9),
                                       .duplex = 1,
                                       .overhead = 0.3e-6,
                                       .reduce = reduce,
                                       .copy = copy,
                                       .measured = {}};
  table.transports[Transport::kTcp] = {.message = Curve::line(25e-6, 1 / 1.1e9),
                                       .duplex = 0.2,
                                       .overhead = 4e-6,
                                       .reduce = reduce,
                                       .copy = copy,
                                       .measured = {}};
  table.transports[Transport::kMpi] = {.message = Curve::line(10e-6, 1 / 1.1e9),
                                       .duplex = 0.2,
                                       .overhead = 1e-6,
                                       .reduce = reduce,
                                       .copy = copy,
                                       .measured = {}};
  return table;
}

std::string to_text(const Curve& curve) {
  std::string text;
  for (const auto& knot : curve.knots())
    text += " " + json_number(knot.bytes) + ":" + json_number(knot.seconds);
  return text;
}

void write(std::string& out, const TransportCost& cost) {
  out += "message" + to_text(cost.message) + "\nduplex " + json_number(cost.duplex) +
         "\noverhead " + json_number(cost.overhead) + "\nreduce" + to_text(cost.reduce) + "\ncopy" +
         to_text(cost.copy) + "\nmeeting " + json_number(cost.meeting) + "\n";
  for (const Measured& one : cost.measured) {
    out += std::string("measured ") + schedule::to_string(one.collective) + " " +
           schedule::to_string(one.algorithm) + " " + std::to_string(one.world) +
           (one.chunk > 0 ? " chunk " + std::to_string(one.chunk) : "") + to_text(one.seconds) +
           "\n";
  }
}

std::string checksum(std::string_view body) {
  return formatted("crc32c %08x\n", crc32c(body.data(), body.size()));
}

// Parses text() line by line. Every error names the line.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  CostTable read() {
    CostTable table;
    check(next_line() == kTitle, "is not \"" + std::string(kTitle) + "\"");
    next_line();
    take_name("machine");
    table.machine = words_;
    next_line();
    take_name("date");
    table.date = words_;
    TransportCost* cost = nullptr;
    while (!rest_.empty()) {
      next_line();
      const std::string_view name = word();
      if (name == "transport") {
        cost = &table.transports[transport(word())];
      } else {
        check(cost != nullptr, "stands before any transport");
        fact(*cost, name);
      }
      check(words_.empty(), "goes on too long");
    }
    return table;
  }

 private:
  void check(bool good, const std::string& what) const {
    if (!good)
      throw Error(Errc::kCorrupt, "cost table: line " + std::to_string(line_) + " " + what);
  }
  std::string_view next_line() {
    const auto end = rest_.find('\n');
    ++line_;
    check(end != std::string_view::npos, "has no end");
    words_ = rest_.substr(0, end);
    rest_ = rest_.substr(end + 1);
    return words_;
  }
  std::string_view word() {
    const auto end = std::min(words_.find(' '), words_.size());
    const std::string_view first = words_.substr(0, end);
    words_ = words_.substr(std::min(end + 1, words_.size()));
    return first;
  }
  void take_name(std::string_view name) {
    check(word() == name, "does not begin with " + std::string(name));
  }

  template <class Number>
  Number number(std::string_view text) const {
    const auto value = parse_count<Number>(text);
    check(value && std::isfinite(static_cast<double>(*value)),
          "has '" + std::string(text) + "' where a number stands");
    return *value;
  }
  Curve curve() {
    std::vector<Curve::Knot> knots;
    while (!words_.empty()) {
      const std::string_view knot = word();
      const auto colon = knot.find(':');
      check(colon != std::string_view::npos, "has a knot without a colon");
      knots.push_back(
          {number<double>(knot.substr(0, colon)), number<double>(knot.substr(colon + 1))});
      check(knots.size() < 2 || knots[knots.size() - 2].bytes < knots.back().bytes,
            "has knots that do not rise");
    }
    return Curve(std::move(knots));
  }
  Transport transport(std::string_view name) const {
    const auto found = std::find(kTransportNames.begin(), kTransportNames.end(), name);
    check(found != kTransportNames.end(), "names no transport");
    return kTransports[static_cast<std::size_t>(found - kTransportNames.begin())];
  }
  template <class Named>
  Named named(std::span<const Named> all) {
    const std::string_view name = word();
    for (const Named one : all) {
      if (name == schedule::to_string(one)) return one;
    }
    check(false, "names neither a collective nor an algorithm where one stands");
    return {};
  }
  void fact(TransportCost& cost, std::string_view name) {
    if (name == "message") {
      cost.message = curve();
    } else if (name == "reduce") {
      cost.reduce = curve();
    } else if (name == "copy") {
      cost.copy = curve();
    } else if (name == "duplex") {
      cost.duplex = number<double>(word());
    } else if (name == "overhead") {
      cost.overhead = number<double>(word());
    } else if (name == "meeting") {
      cost.meeting = number<double>(word());
    } else {
      check(name == "measured", "says '" + std::string(name) + "', which is not known");
      const auto collective = named(schedule::collectives());
      const auto algorithm = named(schedule::algorithms());
      const int world = number<int>(word());
      std::int64_t chunk = 0;
      if (words_.starts_with("chunk ")) {
        word();
        chunk = number<std::int64_t>(word());
        check(chunk > 0, "has blocks of no bytes");
      }
      cost.measured.push_back({collective, algorithm, world, curve(), chunk});
    }
  }

  std::string_view rest_, words_;
  int line_ = 0;
};

}  // namespace

std::span<const Transport> transports() { return kTransports; }

const char* to_string(Transport transport) {
  return kTransportNames[static_cast<std::size_t>(transport)];
}

Curve::Curve(std::vector<Knot> knots) : knots_(std::move(knots)) {
  for (std::size_t i = 0; i < knots_.size(); ++i) {
    const auto& [bytes, seconds] = knots_[i];
    WEFT_REQUIRE(std::isfinite(bytes) && bytes >= 0 && std::isfinite(seconds) && seconds >= 0,
                 "a curve has a negative or endless value");
    WEFT_REQUIRE(i == 0 || knots_[i - 1].bytes < bytes, "a curve's knots do not rise");
  }
}

Curve Curve::line(double alpha, double beta) {
  return Curve({{0, alpha}, {1e6, alpha + beta * 1e6}});
}

double Curve::at(double bytes) const {
  if (knots_.empty()) return 0;
  if (bytes <= knots_.front().bytes || knots_.size() == 1) return knots_.front().seconds;
  auto above = std::upper_bound(knots_.begin(), knots_.end(), bytes,
                                [](double value, const Knot& knot) { return value < knot.bytes; });
  if (above == knots_.end()) --above;
  const Knot& left = *(above - 1);
  const double slope = (above->seconds - left.seconds) / (above->bytes - left.bytes);
  return std::max(0.0, left.seconds + slope * (bytes - left.bytes));
}

const TransportCost& CostTable::of(Transport transport) const {
  const auto found = transports.find(transport);
  return found != transports.end() ? found->second : default_table().transports.at(transport);
}

std::string CostTable::text() const {
  std::string out = std::string(kTitle) + "\nmachine " + machine + "\ndate " + date + "\n";
  for (const auto& [transport, cost] : transports) {
    out += std::string("transport ") + to_string(transport) + "\n";
    write(out, cost);
  }
  return out + checksum(out);
}

CostTable CostTable::parse(std::string_view text) {
  const auto body = text.substr(0, text.size() - std::min(text.size(), checksum("").size()));
  if (text != std::string(body) + checksum(body))
    throw Error(Errc::kCorrupt, "cost table: the checksum at the end is wrong or missing");
  return Reader(body).read();
}

std::uint64_t CostTable::hash() const {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text()) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

const CostTable& default_table() {
  static const CostTable table = make_defaults();
  return table;
}

std::int64_t payload(const schedule::Request& request, std::size_t element) {
  schedule::Request at_root = request;
  at_root.rank = request.root;
  return std::max(schedule::input_count(at_root), schedule::output_count(at_root)) *
         static_cast<std::int64_t>(element);
}

}  // namespace weft::plan
