#include "weft/plan/mesh/pictures/mesh_picture.h"

#include <algorithm>
#include <numeric>

#include "weft/base/error.h"
#include "weft/base/svg/svg.h"
#include "weft/base/text/words.h"

namespace weft::plan {
namespace {

// Host of each rank.
std::vector<int> hosts_of(const MeshLayout& mesh, const std::vector<int>& sizes) {
  std::vector<int> host;
  for (std::size_t h = 0; h < sizes.size(); ++h)
    host.insert(host.end(), static_cast<std::size_t>(std::max(0, sizes[h])), static_cast<int>(h));
  if (sizes.empty()) host.assign(static_cast<std::size_t>(mesh.world()), 0);
  if (static_cast<int>(host.size()) != mesh.world()) {
    throw Error(Errc::kBadConfig, "the hosts have " + counted(host.size(), "rank") +
                                      " and the mesh (" + mesh.describe() + ") has " +
                                      std::to_string(mesh.world()));
  }
  return host;
}

std::string padded(const std::string& text, std::size_t width) {
  return text + std::string(width > text.size() ? width - text.size() : 0, ' ');
}

const char* purpose(const std::string& axis) {
  if (axis == "dp") return "same weights, other samples";
  if (axis == "fsdp") return "a share of weights and state, other samples";
  if (axis == "tp") return "a share of each layer's features, same samples";
  if (axis == "cp") return "a share of each sequence";
  if (axis == "ep") return "some of the experts, other samples";
  return "some of the layers";
}

// "{0,1} {2,3} … {6,7}".
std::string listed(const std::vector<std::vector<int>>& groups) {
  std::string text;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups.size() > 6 && g == 3) {
      text += " …";
      g = groups.size() - 1;
    }
    text += text.empty() ? "{" : " {";
    for (std::size_t i = 0; i < groups[g].size(); ++i) {
      const bool gap = groups[g].size() > 9 && i == 4;
      if (gap) i = groups[g].size() - 1;
      text += (i == 0 ? "" : gap ? ",…," : ",") + std::to_string(groups[g][i]);
    }
    text += "}";
  }
  return text;
}

bool stays(const std::vector<std::vector<int>>& groups, const std::vector<int>& host) {
  return std::all_of(groups.begin(), groups.end(), [&](const std::vector<int>& group) {
    return std::all_of(group.begin(), group.end(), [&](int rank) {
      return host[static_cast<std::size_t>(rank)] == host[static_cast<std::size_t>(group[0])];
    });
  });
}

void box(Svg& svg, double x, double y, const std::string& fill, const std::string& first,
         const std::string& second) {
  constexpr double kWidth = 112, kHeight = 46;
  svg.element("rect", {{"x", x},
                       {"y", y},
                       {"width", kWidth},
                       {"height", kHeight},
                       {"rx", "5"},
                       {"fill", fill},
                       {"stroke", "#333"}});
  const double middle = x + kWidth / 2;
  svg.newline().text({{"x", middle}, {"y", y + 19}, {"font-weight", "bold"}}, first);
  svg.newline().text({{"x", middle}, {"y", y + 36}, {"font-size", "11"}}, second).newline();
}

std::string title(const MeshLayout& mesh) {
  return counted(mesh.world(), "rank") + ": " + mesh.describe();
}

}  // namespace

std::string show(const MeshLayout& mesh, const std::vector<int>& hosts) {
  const auto host = hosts_of(mesh, hosts);
  std::string text = title(mesh) + "\n\n" + padded("rank", 6) + padded("host", 6);
  for (const Axis& axis : mesh.axes())
    text += padded(axis.name, std::max<std::size_t>(6, axis.name.size() + 2));
  text.erase(text.find_last_not_of(' ') + 1);
  text += "\n";
  for (int rank = 0; rank < mesh.world(); ++rank) {
    if (mesh.world() > 64 && rank == 32) {
      text += "…\n";
      rank = mesh.world() - 8;
    }
    text += padded(std::to_string(rank), 6) +
            padded(std::to_string(host[static_cast<std::size_t>(rank)]), 6);
    for (const Axis& axis : mesh.axes())
      text += padded(std::to_string(mesh.coordinate(rank, axis.name)),
                     std::max<std::size_t>(6, axis.name.size() + 2));
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  text += "\n";
  for (const Axis& axis : mesh.axes()) {
    const auto groups = mesh.groups(axis.name);
    text += padded(axis.name, 6) + padded(listed(groups), 28) +
            "  each rank: " + purpose(axis.name) +
            (axis.size == 1        ? "; nothing travels"
             : stays(groups, host) ? "; travels inside a host"
                                   : "; travels between hosts") +
            "\n";
  }
  return text;
}

std::string show_svg(const MeshLayout& mesh, const std::vector<int>& hosts) {
  if (mesh.world() > 512)
    throw Error(Errc::kBadConfig, "a picture of more than 512 ranks cannot be read; show fewer");
  const auto host = hosts_of(mesh, hosts);
  // Colors that color-blind readers can tell apart (Okabe and Ito, lightened).
  constexpr const char* kFills[] = {"#cfe8f7", "#fbe3b5", "#c8ebdd", "#f6d2c2",
                                    "#eedcec", "#fbf6c3", "#cfdcec", "#e6e6e6"};
  const int columns = std::clamp(mesh.axes().empty() ? 1 : mesh.axes().back().size, 1, 8);
  // Ranks of each host, and the height of its frame.
  std::vector<int> sizes;
  for (int first = 0; first < mesh.world(); first += sizes.back())
    sizes.push_back(static_cast<int>(
        std::count(host.begin(), host.end(), host[static_cast<std::size_t>(first)])));
  const auto height_of = [&](int size) { return 34 + 58.0 * ((size + columns - 1) / columns); };
  double height = 72;
  for (const int size : sizes) height += height_of(size) + 14;
  Svg svg("%.1f");
  svg.begin("svg", {{"xmlns", "http://www.w3.org/2000/svg"},
                    {"width", std::max(460.0, 60 + 124.0 * columns)},
                    {"height", height},
                    {"font-family", "sans-serif"},
                    {"font-size", "13"},
                    {"text-anchor", "middle"}});
  svg.newline().element("rect", {{"width", "100%"}, {"height", "100%"}, {"fill", "white"}});
  svg.newline().text({{"text-anchor", "start"}, {"x", 16}, {"y", 26}, {"font-size", "16"}},
                     title(mesh));
  svg.newline().text(
      {{"text-anchor", "start"}, {"x", 16}, {"y", 46}, {"font-size", "12"}, {"fill", "#444"}},
      "colors: pipeline stages; ranks of a row are neighbors along the last axis");
  svg.newline();
  double y = 64;
  int first = 0;
  for (const int size : sizes) {
    svg.element("rect", {{"x", 16},
                         {"y", y},
                         {"width", 28 + 124.0 * columns},
                         {"height", height_of(size)},
                         {"rx", "8"},
                         {"fill", "none"},
                         {"stroke", "#888"}});
    svg.newline().text({{"text-anchor", "start"}, {"x", 28}, {"y", y + 20}},
                       "host " + std::to_string(host[static_cast<std::size_t>(first)]));
    svg.newline();
    for (int rank = first; rank < first + size; ++rank) {
      std::string places;
      for (const Axis& axis : mesh.axes()) {
        if (axis.size > 1)
          places += (places.empty() ? "" : " ") + axis.name + " " +
                    std::to_string(mesh.coordinate(rank, axis.name));
      }
      const int row = (rank - first) / columns;
      box(svg, 36 + 124.0 * ((rank - first) % columns), y + 30 + 58.0 * row,
          kFills[mesh.coordinate(rank, "pp") % static_cast<int>(std::size(kFills))],
          "rank " + std::to_string(rank), places);
    }
    y += height_of(size) + 14;
    first += size;
  }
  return svg.end_page();
}

}  // namespace weft::plan
