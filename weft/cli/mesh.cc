// `weft plan show`: shows a mesh of ranks as a table or a picture.
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json/json.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/schedule_request.h"
#include "weft/plan/mesh/mesh.h"
#include "weft/plan/mesh/pictures/mesh_picture.h"

namespace weft::cli {
namespace {

int product(const std::vector<plan::Axis>& axes) {
  long long ranks = 1;
  for (const auto& axis : axes) {
    WEFT_REQUIRE(axis.size > 0, axis.name + "=" + std::to_string(axis.size) +
                                    ": say how many ranks there are by --ranks or --hosts");
    ranks *= axis.size;
    WEFT_REQUIRE(ranks <= 1'000'000, "a mesh of more than a million ranks cannot be shown");
  }
  return static_cast<int>(ranks);
}

void print_json(const plan::MeshLayout& mesh, const std::vector<int>& hosts) {
  int rank = 0;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    for (int local = 0; local < hosts[host]; ++local, ++rank) {
      nlohmann::ordered_json line = {{"rank", rank}, {"host", host}};
      for (const auto& axis : mesh.axes()) line[axis.name] = mesh.coordinate(rank, axis.name);
      std::cout << json_line(line) << '\n';
    }
  }
}

}  // namespace

int plan_show(const MeshCommand& command) {
  const auto axes = plan::parse_axes(command.axes);
  std::vector<int> hosts;
  if (!command.hosts.empty()) hosts = internal::host_sizes(command.hosts);
  const int there = std::accumulate(hosts.begin(), hosts.end(), 0);
  if (hosts.empty()) hosts = {command.ranks ? *command.ranks : product(axes)};
  WEFT_REQUIRE(!command.ranks || there == 0 || there == *command.ranks,
               "--ranks " + std::to_string(command.ranks.value_or(0)) +
                   " and --hosts, which have " + std::to_string(there) + ", disagree");
  WEFT_REQUIRE(hosts[0] >= 1, "--ranks must be 1 or more");
  const plan::MeshLayout mesh(there > 0 ? there : hosts[0], axes);
  if (!command.svg.empty()) {
    write_file_atomic(command.svg, plan::show_svg(mesh, hosts));
    std::cerr << "written to " << command.svg << '\n';
  }
  if (command.json) {
    print_json(mesh, hosts);
  } else if (command.svg.empty()) {
    std::cout << plan::show(mesh, hosts);
  }
  return 0;
}

}  // namespace weft::cli
