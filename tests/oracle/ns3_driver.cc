// Bulk TCP transfers over given paths in ns-3; reads a case from standard input, prints each finish time.
//
// Input, separated by white space:
//   tcp_type mtu_bytes queue_packets marking_packets
//   number of cables, then each: node node bits_per_second_there bits_per_second_back latency_s
//   number of flows, then each: start_s bytes number_of_nodes node ...
// Each node sends a destination's packets one way only, so that a flow takes the path it is given. Its
// acknowledgements take the same cables back.
// Output: one line per flow: finish_s (last byte at the receiver) and packets that queues dropped in total.

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

#include <cstdio>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

using namespace ns3;

namespace
{

struct Flow
{
    double start = 0;
    uint64_t bytes = 0;
    std::vector<std::string> path;
    uint64_t received = 0;
    double finish = -1;
};

struct Way
{
    uint32_t interface;
    Ipv4Address next;
};

std::vector<Flow> flows;
std::map<std::string, Ptr<Node>> nodes;
std::map<std::pair<std::string, std::string>, Way> ways;
std::map<std::pair<std::string, std::string>, std::string> routed; // (node, destination) -> next node
uint64_t dropped = 0;

void
Received(uint32_t number, Ptr<const Packet> packet, const Address&)
{
    Flow& flow = flows[number];
    flow.received += packet->GetSize();
    if (flow.received >= flow.bytes && flow.finish < 0)
    {
        flow.finish = Simulator::Now().GetSeconds();
    }
}

void
Dropped(Ptr<const QueueDiscItem>)
{
    dropped++;
}

void
SetDefaults(const std::string& tcp, uint32_t mtu, uint32_t queue, uint32_t marking)
{
    const uint32_t headers = 52; // IPv4 20, TCP 20, time stamps 12
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(TypeId::LookupByName(tcp)));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(mtu - headers));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(1 << 25));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(1 << 25));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1)); // a window of one packet never waits
    Config::SetDefault("ns3::TcpSocket::ConnTimeout", TimeValue(MilliSeconds(10)));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(1)));
    Config::SetDefault("ns3::TcpSocketBase::ClockGranularity", TimeValue(MicroSeconds(10)));
    Config::SetDefault("ns3::PointToPointNetDevice::Mtu", UintegerValue(mtu));
    Config::SetDefault("ns3::RedQueueDisc::UseEcn", BooleanValue(true));
    Config::SetDefault("ns3::RedQueueDisc::UseHardDrop", BooleanValue(false));
    Config::SetDefault("ns3::RedQueueDisc::MeanPktSize", UintegerValue(mtu));
    Config::SetDefault("ns3::RedQueueDisc::QW", DoubleValue(1)); // the queue itself, not its average
    Config::SetDefault("ns3::RedQueueDisc::MinTh", DoubleValue(marking));
    Config::SetDefault("ns3::RedQueueDisc::MaxTh", DoubleValue(marking));
    Config::SetDefault("ns3::RedQueueDisc::MaxSize",
                       QueueSizeValue(QueueSize(QueueSizeUnit::PACKETS, queue)));
}

Ptr<Node>
NodeNamed(const std::string& name)
{
    auto found = nodes.find(name);
    if (found == nodes.end())
    {
        Ptr<Node> node = CreateObject<Node>();
        InternetStackHelper stack;
        stack.SetRoutingHelper(Ipv4StaticRoutingHelper());
        stack.Install(node);
        found = nodes.emplace(name, node).first;
    }
    return found->second;
}

void
AddCable(uint32_t number)
{
    std::string a;
    std::string b;
    double there;
    double back;
    double latency;
    std::cin >> a >> b >> there >> back >> latency;
    PointToPointHelper cable;
    cable.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", StringValue("2p")); // the rest waits in RED
    cable.SetChannelAttribute("Delay", TimeValue(Seconds(latency)));
    NetDeviceContainer ends = cable.Install(NodeNamed(a), NodeNamed(b));
    ends.Get(0)->SetAttribute("DataRate", DataRateValue(DataRate(static_cast<uint64_t>(there))));
    ends.Get(1)->SetAttribute("DataRate", DataRateValue(DataRate(static_cast<uint64_t>(back))));
    TrafficControlHelper control;
    control.SetRootQueueDisc("ns3::RedQueueDisc");
    QueueDiscContainer queues = control.Install(ends);
    for (uint32_t i = 0; i < queues.GetN(); i++)
    {
        queues.Get(i)->TraceConnectWithoutContext("Drop", MakeCallback(&Dropped));
    }
    Ipv4AddressHelper network(Ipv4Address(0x0a000000u + 4 * number), "255.255.255.252");
    Ipv4InterfaceContainer in = network.Assign(ends);
    ways[{a, b}] = Way{in.Get(0).second, in.GetAddress(1)};
    ways[{b, a}] = Way{in.Get(1).second, in.GetAddress(0)};
}

// Hosts are known by the address of the interface that their flows arrive at.
void
Route(const std::vector<std::string>& path, Ipv4Address target)
{
    Ipv4StaticRoutingHelper helper;
    for (size_t i = 0; i + 1 < path.size(); i++)
    {
        const auto key = std::make_pair(path[i], path.back());
        const auto known = routed.find(key);
        if (known != routed.end())
        {
            NS_ABORT_MSG_IF(known->second != path[i + 1], "two ways to one destination");
            continue;
        }
        routed[key] = path[i + 1];
        const Way way = ways.at({path[i], path[i + 1]});
        Ptr<Ipv4> ipv4 = nodes.at(path[i])->GetObject<Ipv4>();
        helper.GetStaticRouting(ipv4)->AddHostRouteTo(target, way.next, way.interface);
    }
}

void
AddFlow(uint32_t number)
{
    const Flow& flow = flows[number];
    const std::vector<std::string> back(flow.path.rbegin(), flow.path.rend());
    const size_t last = flow.path.size() - 1;
    const Ipv4Address target = ways.at({flow.path[last - 1], flow.path[last]}).next;
    const Ipv4Address source = ways.at({flow.path[1], flow.path[0]}).next;
    Route(flow.path, target);
    Route(back, source);
    const uint16_t port = 1000 + number;
    PacketSinkHelper sink("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), port));
    ApplicationContainer receiver = sink.Install(nodes.at(flow.path.back()));
    receiver.Get(0)->TraceConnectWithoutContext("Rx", MakeBoundCallback(&Received, number));
    BulkSendHelper bulk("ns3::TcpSocketFactory", InetSocketAddress(target, port));
    bulk.SetAttribute("MaxBytes", UintegerValue(flow.bytes));
    bulk.SetAttribute("SendSize", UintegerValue(1 << 16));
    bulk.Install(nodes.at(flow.path.front())).Start(Seconds(flow.start));
}

} // namespace

int
main()
{
    std::string tcp;
    uint32_t mtu;
    uint32_t queue;
    uint32_t marking;
    std::cin >> tcp >> mtu >> queue >> marking;
    Time::SetResolution(Time::PS);
    SetDefaults(tcp, mtu, queue, marking);
    uint32_t count;
    std::cin >> count;
    for (uint32_t i = 0; i < count; i++)
    {
        AddCable(i);
    }
    std::cin >> count;
    flows.resize(count);
    for (Flow& flow : flows)
    {
        size_t length;
        std::cin >> flow.start >> flow.bytes >> length;
        flow.path.resize(length);
        for (std::string& node : flow.path)
        {
            std::cin >> node;
        }
    }
    NS_ABORT_MSG_IF(!std::cin, "incomplete case");
    for (uint32_t i = 0; i < count; i++)
    {
        AddFlow(i);
    }
    Simulator::Stop(Seconds(60));
    Simulator::Run();
    for (const Flow& flow : flows)
    {
        std::printf("%.12f %llu\n", flow.finish, static_cast<unsigned long long>(dropped));
    }
    Simulator::Destroy();
    return 0;
}
